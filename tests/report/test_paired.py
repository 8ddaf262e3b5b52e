"""Paired differences: on the same requests, with an interval, and silent where nothing differs."""

import polars as pl
import pytest
from rich.console import Group

from cbjax.metrics import request_latencies
from cbjax.report import paired, paired_differences, paired_tables, plain_text
from cbjax.results import collect_runs, read_run
from tests.report.conftest import Batcher, make_run, mixed_requests

ARMS = {"slow": {"base_s": 0.0044}, "same": {}, "blocks": {"num_blocks": 30},
        "whole": {"static": True, "at_end": True, "num_blocks": 400}}


@pytest.fixture
def study(tmp_path):
    """Runs of a few settings and seeds at one load, as one table."""

    def make(arms=("first", "slow", "same"), seeds=1, count=60, rate=lambda seed, arm: 5.0):
        for arm in arms:
            for seed in range(seeds):
                knobs = ARMS.get(arm, {})
                requests = mixed_requests(count, rate(seed, arm), seed)
                config = {"policy": {"name": "vllm"}, "knobs": knobs, "arm": arm,
                          "workload": {"rate": rate(seed, arm)}}
                label = f"{arm}, seed={seed}" if seeds > 1 else arm
                make_run(tmp_path / f"{arm}-{seed}", Batcher(requests, **knobs), label, "vllm",
                         config=config, seed=seed)
        order = pl.DataFrame({"label": [f"{a}, seed={s}" if seeds > 1 else a
                                        for a in arms for s in range(seeds)]})
        return order.join(collect_runs(tmp_path), on="label", how="left", maintain_order="left")

    return make


def row(differences, setting, metric):
    found = differences.filter(pl.col("setting") == setting, pl.col("metric") == metric)
    return found.to_dicts()[0]


def test_one_seed_is_judged_by_stretches_of_its_requests(study):
    rows = study()
    found = paired_differences(rows)
    assert found["against"].unique().to_list() == ["first"]
    slow = row(found, "slow", "e2e_s.mean")
    assert 0 < slow["low"] < slow["difference"] < slow["high"]
    assert (slow["verdict"], slow["how"]) == ("higher", "bootstrap, 10 stretches")
    same = row(found, "same", "e2e_s.mean")
    assert same["difference"] == 0 and same["verdict"] == "no significant difference"
    # Rates have one value a run, and percentiles none that could be averaged over stretches.
    assert row(found, "slow", "output_tokens_per_s")["verdict"] == "cannot tell"
    assert "ttft_s.p95" not in found["metric"].to_list()


def test_the_first_fifth_of_the_arrivals_is_left_out(study):
    rows = study()
    first, slow = (
        pl.read_parquet(f"{folder}/requests.parquet")
        for folder in rows.filter(pl.col("label").is_in(["first", "slow"]))["folder"]
    )
    late = first.sort("scheduled_arrival_s")["request_id"][12:]
    means = [
        request_latencies(table).filter(pl.col("request_id").is_in(late.to_list()))["ttft_s"].mean()
        for table in (first, slow)
    ]
    found = row(paired_differences(rows), "slow", "ttft_s.mean")
    assert [found["first"], found["this"]] == pytest.approx(means)
    assert found["difference"] == pytest.approx(means[1] - means[0])


def test_several_seeds_are_judged_over_seeds(study):
    found = paired_differences(study(seeds=6, count=30))
    assert set(found["setting"]) == {"slow", "same"}
    slow = row(found, "slow", "output_tokens_per_s")
    assert (slow["how"], slow["verdict"]) == ("bootstrap, 6 seeds", "lower")
    assert row(found, "slow", "e2e_s.p95")["verdict"] == "higher"


def test_few_seeds_have_students_interval(study):
    found = paired_differences(study(("first", "slow"), seeds=3, count=30))
    assert set(found["how"]) == {"Student's t, 3 seeds"}


def test_pairing_sees_what_means_of_different_requests_hide(study):
    """A tenth more per iteration: certain in pairs, far below the spread between seeds."""
    rows = study(("first", "slow"), seeds=4, count=30)
    found = row(paired_differences(rows), "slow", "e2e_s.mean")
    spread = rows.filter(pl.col("label").str.starts_with("first"))["e2e_s.mean"].std()
    assert found["verdict"] == "higher" and found["difference"] < spread


def test_settings_are_compared_with_the_first_of_their_workload(study):
    rates = {"first": 5.0, "slow": 5.0, "same": 20.0, "blocks": 20.0}
    found = paired_differences(study(tuple(rates), rate=lambda seed, arm: rates[arm]))
    pairs = set(found.select("against", "setting").iter_rows())
    assert pairs == {("first", "slow"), ("same", "blocks")}


def test_loads_alone_are_compared_with_the_first_load(study):
    rates = {"first": 5.0, "same": 20.0}
    found = paired_differences(study(tuple(rates), rate=lambda seed, arm: rates[arm]))
    assert set(found.select("against", "setting").iter_rows()) == {("first", "same")}


def test_different_requests_are_not_paired(study, tmp_path):
    rows = study(("first", "slow"))
    path = tmp_path / "slow-0" / "requests.parquet"
    pl.read_parquet(path).with_columns(pl.col("prompt_tokens") + 1).write_parquet(path)
    assert set(paired_differences(rows)["verdict"]) == {"cannot tell"}


def test_a_run_without_requests_is_not_judged(study, tmp_path):
    rows = study(("first", "slow"))
    (tmp_path / "slow-0" / "requests.parquet").unlink()
    found = paired_differences(rows)
    assert set(found["verdict"]) == {"cannot tell"} and found["low"].null_count() == len(found)


def test_few_requests_of_one_seed_are_not_judged(study):
    found = paired_differences(study(count=9))
    assert set(found["verdict"]) == {"cannot tell"}
    (said,) = paired_tables(found)
    assert "seed=range(6)" in said


def test_gaps_of_whole_answers_are_not_compared(study):
    found = paired_differences(study(("first", "whole")))
    assert "tpot_s.mean" not in found["metric"].to_list()
    assert row(found, "whole", "e2e_s.mean")["verdict"] == "higher"


def test_one_setting_has_nothing_to_be_compared_with(study):
    found = paired_differences(study(("first",), seeds=2, count=9))
    assert found.is_empty() and paired_tables(found) == []


def test_the_tables_say_what_was_found_and_how(study):
    found = paired_differences(study())
    text = plain_text(Group(*paired_tables(found)))
    assert "paired differences against 'first'" in text
    assert "no significant difference" in text and "higher" in text
    assert text.count("without the first 20 %") == 1
    slow = row(found, "slow", "e2e_s.mean")
    share = 100 * slow["difference"] / slow["first"]
    line = next(line for line in text.splitlines() if "E2E latency mean (s)" in line)
    assert f"+{share:.2f}" in line and " to +" in line
    assert "… and 4 more differences" in plain_text(Group(*paired_tables(found, len(found) - 4)))


def test_settings_are_told_apart_by_what_they_are_and_not_by_their_labels(study):
    """Rows of several studies may use one label for different settings."""
    rows = study(arms=("first", "slow"))
    alike = rows.with_columns(label=pl.lit("vllm"))
    found = paired_differences(alike)
    assert found["setting"].unique().to_list() == ["vllm"]
    assert row(found, "vllm", "e2e_s.mean") | {"setting": "slow", "against": "first"} == row(
        paired_differences(rows), "slow", "e2e_s.mean"
    )


def test_runs_that_were_read_before_are_not_read_again(study, monkeypatch):
    rows = study(arms=("first", "slow"))
    before, runs = paired_differences(rows), [read_run(folder) for folder in rows["folder"]]
    monkeypatch.setattr(paired, "read_requests", None)
    assert paired_differences(rows, runs).equals(before)
