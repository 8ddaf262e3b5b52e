"""Curves, trade-offs and capacities: drawn from the rows of studies, with what they must mark."""

import numpy as np
import polars as pl
import pytest

from cbjax.report import capacities, capacity_table, plain_text, views
from cbjax.report.lines import lines_of
from cbjax.report.views.classes import jain
from cbjax.report.views.tradeoff import pareto
from cbjax.results import collect_runs, write_capacity
from tests.report.test_figures import assert_legible

RATE = "workload.arrivals.rate"


def study(policies=("static", "vllm"), rates=(1.0, 2.0, 4.0), seeds=(0, 1)):
    """Rows of a study; static overloads from rate 4 on."""
    rows = []
    for policy in policies:
        slow = 10.0 if policy == "static" else 1.0
        for rate in rates:
            for seed in seeds:
                rows.append({
                    "label": f"{policy}, rate={rate:g}, seed={seed}", "policy": policy,
                    "seed": seed,
                    RATE: rate, "output_tokens_per_s": 100 * min(rate, 3), "requests_per_s": rate,
                    "e2e_s.mean": slow * rate, "ttft_s.p95": slow * rate + seed,
                    "itl_s.p99": 0.05 / rate,
                    "queue_growth": 0.3 if policy == "static" and rate >= 4 else 0.0,
                    "preemptions": 0,
                })
    return pl.DataFrame(rows)


def test_lines_average_over_seeds_and_keep_their_policy_s_colour():
    static, vllm = lines_of(study(), RATE)
    assert (static.label, vllm.label) == ("static", "vllm")
    np.testing.assert_allclose(vllm.at, [1, 2, 4])
    np.testing.assert_allclose(vllm.values("ttft_s.p95"), [1.5, 2.5, 4.5])
    assert np.isnan(vllm.values("e2e_s.p99")).all()
    assert static.style["color"] != vllm.style["color"]


def test_an_alias_is_read_from_the_labels():
    rows = pl.DataFrame({
        "label": ["vllm, budget=64", "vllm, budget=256", "sglang, budget=64", "sglang, budget=256"],
        "policy": ["vllm", "vllm", "sglang", "sglang"], "itl_s.p99": [1.0, 2.0, 3.0, 4.0],
    })
    vllm, sglang = lines_of(rows, "budget")
    np.testing.assert_allclose(vllm.at, [64, 256])
    np.testing.assert_allclose(sglang.values("itl_s.p99"), [3, 4])
    with pytest.raises(ValueError, match="'seats' is not a setting with numbers"):
        lines_of(rows, "seats")


def test_curves_are_legible_and_overload_is_hollow(tmp_path):
    figure = views.get("curves")(study(), tmp_path, x=RATE)
    assert_legible(figure)
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.axison]
    assert titles == ["output tokens/s", "TTFT p95 (s)"], "what is 0 everywhere has no panel"
    hollow = [
        line for line in figure.axes[0].get_lines() if line.get_markerfacecolor() == "white"
    ]
    assert [len(line.get_xdata()) for line in hollow] == [1, 0]


def test_a_trade_off_marks_what_nothing_beats(tmp_path):
    assert_legible(views.get("tradeoff")(study(), tmp_path, along=RATE))
    x, y = np.array([1.0, 2.0, 3.0, 2.0, np.nan]), np.array([3.0, 1.0, 2.0, 1.0, 0.0])
    assert sorted(pareto(x, y)) == [0, 1, 3]


def found(lows, highs=None, gave_way="ttft p95"):
    """A search's rows: one failing and one passing load per setting and seed."""
    rows = []
    for (label, seed), low in lows.items():
        high = (highs or {}).get((label, seed), 1.05 * low)
        for rate, held in ((low, True), (high, False)):
            rows.append({
                "label": label, "policy": label, "seed": seed, "low": low, "high": high,
                "rate": rate, "limit": gave_way, "value": 1.0, "bound": 1.0, "held": held,
            })
    return pl.DataFrame(rows)


def test_capacities_of_one_seed_are_brackets():
    rows = capacities(found({("vllm", 0): 4.0, ("orca", 0): 2.0}))
    assert rows["capacity"].to_list() == [4.0, 2.0]
    assert rows["highest"].to_list() == [4.2, 2.1]
    assert rows["margin"].to_list() == [None, None]
    assert rows["gave_way"].to_list() == ["ttft p95", "ttft p95"]


def test_capacities_of_several_seeds_have_an_interval():
    """Student's t for three values: 4.303 s / sqrt(3)."""
    row = capacities(found({("vllm", 0): 3.0, ("vllm", 1): 4.0, ("vllm", 2): 5.0})).to_dicts()[0]
    assert (row["capacity"], row["lowest"], row["highest"]) == (4.0, 3.0, 5.0)
    assert row["margin"] == pytest.approx(4.303 / np.sqrt(3), rel=1e-3)


def test_capacities_are_drawn_and_ranked(tmp_path):
    rows = found({("orca", 0): 2.0, ("vllm", 0): 4.0}, {("vllm", 0): np.inf})
    write_capacity(tmp_path, rows)
    assert_legible(views.get("capacity")(pl.DataFrame(), tmp_path))
    text = plain_text(capacity_table(rows))
    assert text.index("vllm") < text.index("orca")
    with pytest.raises(FileNotFoundError, match="study.search was not set"):
        views.get("capacity")(pl.DataFrame(), tmp_path / "elsewhere")


def test_variants_of_one_policy_are_told_apart_by_colour():
    rows = study(policies=("vllm",)).with_columns(
        label=pl.col("label") + pl.Series([", victim=a", ", victim=b"] * 3)
    )
    first, second = lines_of(rows, RATE)
    assert first.style["color"] != second.style["color"]


def titles_of(figure):
    return [axis.get_title(loc="left") for axis in figure.axes if axis.axison]


def test_classes_are_drawn_apart_with_their_fairness(tmp_path, batcher_run):
    rates = {"workload": {"arrivals": {"rate": 1.0}}}, {"workload": {"arrivals": {"rate": 4.0}}}
    for place, config in enumerate(rates):
        batcher_run(f"vllm {place}", config=config)
    rows = collect_runs(tmp_path).with_columns(label=pl.lit("vllm"), policy=pl.lit("vllm"))
    figure = views.get("classes")(rows, tmp_path, x=RATE)
    assert_legible(figure)
    assert titles_of(figure)[:3] == [
        "TTFT p95 of chat (s)", "E2E by output token of chat (s)",
        "fairness between the classes (Jain)",
    ]


def test_fairness_is_between_one_of_all_and_1():
    assert jain(np.array([2.0, 2.0, 2.0])) == pytest.approx(1)
    assert jain(np.array([9.0, 0.0, 0.0])) == pytest.approx(1 / 3)


def test_block_sizes_are_measured_counted_and_on_paper(tmp_path):
    rows = pl.DataFrame({
        "label": ["block_size=1", "block_size=64"], "policy": ["vllm", "vllm"],
        "kv.block_size": [1, 64], "environment.attention_ms": [2.0, 1.0], "kv_waste": [0.0, 0.2],
    })
    figure = views.get("block_size")(rows, tmp_path, context=100)
    assert_legible(figure)
    lines = {axis.get_title(loc="left"): axis.get_lines()[0] for axis in figure.axes if axis.axison}
    np.testing.assert_allclose(
        lines["block fetches a sequence, counted"].get_ydata(), [100, 2]
    )
    read = lines["KV read, roofline on paper (us)"].get_ydata()
    assert read[1] / read[0] == pytest.approx(128 / 100), "blocks are read whole"
