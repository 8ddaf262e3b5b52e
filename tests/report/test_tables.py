"""Tables state units, conditions and what was not measured."""

import polars as pl

from cbjax.report import comparison_table, plain_text, sweep_table
from cbjax.report.format import metric_title, number
from cbjax.report.tables import SWEPT
from cbjax.results import collect_runs


def test_runs_side_by_side_with_units_and_conditions(runs):
    text = plain_text(comparison_table(runs, "quickstart"))
    for expected in (
        "quickstart",
        "static padded",
        "vllm",
        "output tokens/s",
        "TTFT p95 (s)",
        "ITL p50 (ms)",
        "padding (% of positions)",
        "offered load: 9 requests, no given rate",
        "SLO: none",
        "compile time before the clock: 4.20 s for 6 programs",
    ):
        assert expected in text
    assert "SLO attainment" not in text
    assert "failed" not in text


def test_slo_rows_appear_with_an_slo(batcher_run):
    text = plain_text(comparison_table([batcher_run(slo={"ttft_s": 1.0})]))
    assert "SLO attainment (% of requests)" in text
    assert "SLO: ttft <= 1 s" in text


def test_absent_values_are_dashes_and_explained(batcher_run, runs):
    at_end = batcher_run("at end", static=True, at_end=True, num_blocks=400)
    text = plain_text(comparison_table([runs[2], at_end]), width=200)
    itl = next(line for line in text.splitlines() if "ITL p50" in line)
    assert "–" in itl
    assert "not measured: at end: itl, tpot, max_itl (answers were delivered whole" in text


def test_sweeps_have_a_row_per_run(runs):
    table = collect_runs(runs[0].folder.parent)
    text = plain_text(sweep_table(table, ["policy.name"]))
    assert text.count("static padded") == 1
    assert "policy " in text


def test_headers_of_sweeps_keep_their_words_whole_in_80_columns():
    row = {"policy.max_num_batched_tokens": 16, "kv.block_size": 4, "seed": 0}
    row |= {name: 0.5 for name in SWEPT}
    text = plain_text(sweep_table(pl.DataFrame([row]), list(row)[:3]), width=80)
    assert "…" not in text
    assert "preemptions" in text
    assert "positions)" in text


def test_numbers_and_titles():
    assert metric_title("itl_s.p95") == "ITL p95 (ms)"
    assert metric_title("ttft_s.p95") == "TTFT p95 (s)"
    assert metric_title("unheard_of") == "unheard_of"
    assert number(0.0123, "itl_s.p95") == "12.3"
    assert number(1.0, "ttft_s.p50") == "1.00"
    assert number(0.3333, "padding_fraction") == "33.3"
    assert number(1234567, "recomputed_tokens") == "1,234,567"
    assert number(2.0, "preemptions") == "2"
    assert number(2.5, "preemptions") == "2.50"
    assert number(1234.5, "output_tokens_per_s") == "1,234"
    assert number(None, "ttft_s.p50") == "–"
