"""Engine and simulator side by side at toy size, and what is refused."""

from dataclasses import replace

import polars as pl
import pytest

import cbjax
from cbjax.config import ConfigError
from cbjax.config.study import StudyConfig
from cbjax.experiment.fidelity import METRICS
from cbjax.experiment.redecide import count_differing, differing_iterations
from cbjax.report.views.published import compare
from cbjax.results import read_capacity, read_fidelity
from tests.experiment.toy import toy


def test_the_scheduler_decides_again_what_the_engine_did(tmp_path):
    whole = toy("fidelity", tmp_path)
    busy = whole.cells[-1:]
    run = cbjax.run_experiment(replace(whole, cells=busy, study=StudyConfig())).runs[0]
    iterations, differing = differing_iterations(busy[0], run)
    assert iterations == len(run.tables.iterations) > 10 and differing == 0

    # Another threshold is another decision, and it is noticed.
    policy = {**busy[0].config.policy, "long_prefill_token_threshold": 5}
    other = replace(busy[0], config=replace(busy[0].config, policy=policy))
    assert differing_iterations(other, run)[1] > 0


@pytest.mark.slow
def test_every_load_is_simulated_as_it_ran_and_starved(tmp_path):
    result = cbjax.run_experiment(toy("fidelity", tmp_path))
    rows = read_fidelity(result.folder)

    assert rows["differing"].to_list() == [0] * len(rows)
    assert dict(rows.select("label", "held_out").unique().iter_rows()) == {
        "rate=20": False, "rate=500": True
    }
    assert rows["metric"].unique(maintain_order=True).to_list() == list(METRICS)
    assert not rows.filter(pl.col("against") == "simulated")["simulated"].is_null().any()
    few = next(run for run in result.runs if run.label == "rate=20, too few KV blocks")
    assert few.config["kv"]["num_blocks"] == 22 and few.config["backend"]["name"] == "simulated"
    assert not result.comparison["differs"].any(), "all differences are meant"


def test_another_decision_is_noticed():
    schedule = pl.DataFrame({
        "iteration": [0, 0, 1], "request_id": [0, 1, 0], "kind": ["prefill", "prefill", "decode"],
        "tokens": [4, 4, 1],
    })
    assert count_differing(schedule, schedule) == 0
    other = schedule.with_columns(tokens=pl.Series([4, 3, 1]))
    assert count_differing(schedule, other) == count_differing(other, schedule) == 1
    assert count_differing(schedule, schedule.head(2)) == 1


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["study.fit.loads=[3]"], "study.fit.loads .* choose from 20, 500"),
        (["backend=simulated"], "fitted to runs of the engine"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, overrides, text):
    with pytest.raises(ConfigError, match=text):
        cbjax.run_experiment(toy("fidelity", tmp_path, *overrides))


def test_published_runs_what_has_no_slo_once_and_searches_the_rest(tmp_path):
    whole = toy("published", tmp_path, "study.figures=none")
    wanted = ("Orca (Oracle)", "Orca (Oracle) sustained")
    some = replace(whole, cells=tuple(cell for cell in whole.cells if cell.label in wanted))
    result = cbjax.run_experiment(some)

    assert read_capacity(result.folder)["label"].unique().to_list() == [wanted[1]]
    assert [run.label for run in result.runs][0] == wanted[0]
    claims = whole.study.views["published"]["claims"]
    rows = compare(result.comparison, result.folder, claims)
    known = rows.filter(pl.col("simulated").is_not_null())
    assert known["of"].unique().to_list() == [wanted[0]] and len(known) == 3
    labels = {cell.label for cell in whole.cells}
    assert {label for claim in claims for label in claim["of"]} == labels, "all claims have runs"
