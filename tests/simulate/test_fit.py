"""Fitted step times are those that made the iterations."""

import numpy as np
import polars as pl
import pytest

from cbjax.simulate import costs
from cbjax.simulate.fit import fit_rungs, host_seconds

RUNGS = {4: 0.010, 8: 0.014, 64: 0.050}
PER_POSITION = 2e-5


def iterations(count=90, *, slope=PER_POSITION, noise=0.0):
    """Rungs in turn, contexts that grow, and what each iteration took."""
    rng = np.random.default_rng(1)
    size = np.resize(list(RUNGS), count)
    context = rng.integers(10, 400, count)
    spent = np.array([RUNGS[one] for one in size]) + slope * context
    spent *= 1 + noise * rng.standard_normal(count)
    numbers = np.arange(count)
    main = pl.DataFrame({
        "iteration": numbers, "start_s": np.cumsum(spent + 0.003) - spent, "duration_s": spent,
        "scheduled_tokens": size - 1, "padded_tokens": np.ones(count, int),
        "running": np.full(count, 2), "finished": np.zeros(count, int),
        "waiting": np.zeros(count, int), "backlog": np.zeros(count, int),
    })
    memory = pl.DataFrame({
        "iteration": numbers, "live_tokens": context, "compiled": np.zeros(count, bool)
    })
    return main, memory


def seconds(numbers, tokens, context):
    """As `costs.table` computes it at a rung's own size."""
    at_ends = np.array(numbers["seconds"])[np.searchsorted(numbers["tokens"], tokens)]
    share = np.asarray(context) / numbers["context"][1]
    return at_ends[..., 0] + share * (at_ends[..., 1] - at_ends[..., 0])


def test_the_numbers_make_a_cost():
    assert costs.table(**fit_rungs([iterations()])).grid_s.shape == (len(RUNGS), 2)


def test_times_without_noise_are_found_again():
    first, second = iterations(90), iterations(30)
    numbers = fit_rungs([first, second])
    for tokens, constant in RUNGS.items():
        context = np.array([0, 250])
        expected = constant + PER_POSITION * context
        assert seconds(numbers, tokens, context) == pytest.approx(expected, rel=1e-4)


def test_noise_moves_no_rungs_mean():
    main, memory = iterations(900, noise=0.2)
    numbers = fit_rungs([(main, memory)])
    size = (main["scheduled_tokens"] + main["padded_tokens"]).to_numpy()
    predicted = seconds(numbers, size, memory["live_tokens"].to_numpy())
    for tokens in RUNGS:
        mean = predicted[size == tokens].mean()
        assert mean == pytest.approx(main["duration_s"].to_numpy()[size == tokens].mean(), rel=1e-4)


def test_a_step_never_becomes_cheaper_with_its_context():
    main, memory = iterations(slope=-1e-5)
    numbers = fit_rungs([(main, memory)])
    without, with_context = seconds(numbers, 4, np.array([0, 400]))
    assert without == with_context


def test_one_rung_costs_the_same_whatever_its_tokens():
    main, memory = iterations(30)
    only = main.with_columns(scheduled_tokens=7, duration_s=0.02)
    numbers = fit_rungs([(only, memory)])
    assert seconds(numbers, 8, 0) == pytest.approx(0.02, rel=1e-5)


def test_too_few_iterations_are_refused():
    main, memory = iterations(9)
    with pytest.raises(ValueError, match="9 rows took time"):
        fit_rungs([(main, memory)])


def test_host_time_is_counted_only_while_requests_are_there():
    main, _ = iterations(10)
    idle = main.with_columns(
        running=pl.when(pl.col("iteration") == 4).then(0).otherwise(2),
        start_s=pl.col("start_s") + pl.when(pl.col("iteration") > 4).then(100.0).otherwise(0.0),
    )
    assert host_seconds([main]) == pytest.approx(0.003)
    assert host_seconds([idle]) == pytest.approx(0.003)
