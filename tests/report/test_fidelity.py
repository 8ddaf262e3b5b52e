"""The error table of engine and simulator: averages, goals, and a control that must fail."""

import polars as pl
import pytest

from cbjax.report import plain_text
from cbjax.report.views import fidelity
from cbjax.results import write_fidelity


def rows(label, load, against, errors, *, held_out=True, saturated=False, preempted=0.0):
    """A load's rows under one simulation: the engine measured 1 of everything."""
    about = {"label": label, "load": load, "held_out": held_out, "saturated": saturated,
             "iterations": 50, "differing": 0, "against": against}
    metrics = [
        {**about, "metric": metric, "measured": 1.0, "simulated": 1.0 + error, "error": error}
        for metric, error in errors.items()
    ]
    return [*metrics, {**about, "metric": "preemptions", "measured": preempted,
                       "simulated": preempted + 1, "error": 1.0}]


def study(control_error=0.3):
    exact = {"output_tokens_per_s": -0.01, "ttft_s.p50": 0.04, "itl_s.p50": -0.02}
    control = dict.fromkeys(exact, control_error)
    return pl.DataFrame([
        *rows("rate=1", 1.0, "simulated", exact, held_out=False),
        *rows("rate=2", 2.0, "simulated", exact, preempted=3.0),
        *rows("rate=9", 9.0, "simulated", dict.fromkeys(exact, 0.9), saturated=True),
        *rows("rate=2", 2.0, "too few KV blocks", control, preempted=3.0),
    ])


def test_only_held_out_loads_below_saturation_are_averaged_together():
    reached = fidelity.reached(study()).filter(pl.col("against") == "simulated")
    held_out = reached.filter(pl.col("held_out")).to_dicts()[0]
    assert held_out["throughput"] == held_out["worst_throughput"] == pytest.approx(0.01)
    assert held_out["latency"] == pytest.approx(0.03)
    assert held_out["worst_latency"] == pytest.approx(0.04)


def test_the_control_must_be_worse_where_memory_is_scarce():
    assert fidelity.control_is_worse(study()) is True
    assert fidelity.control_is_worse(study(control_error=0.001)) is False
    assert fidelity.control_is_worse(study().with_columns(measured=pl.lit(0.0))) is None


def test_the_table_tells_all_of_it_and_the_figure_is_drawn(tmp_path):
    write_fidelity(tmp_path, study())
    text = plain_text(fidelity.table(pl.DataFrame(), tmp_path))
    assert "simulated, held out" in text and "rate=9 *" in text and "-1.0" in text
    assert "0 of 150 iterations differ" in text
    assert "worse where memory was scarce, as it must" in text
    fidelity.draw(pl.DataFrame(), tmp_path)


def test_a_study_without_a_fit_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"study\.fit"):
        fidelity.draw(pl.DataFrame(), tmp_path)
