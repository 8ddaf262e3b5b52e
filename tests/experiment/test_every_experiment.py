"""Every experiment file runs, at toy size, from Python, and leaves what a study should."""

import polars as pl
import pytest
import yaml

import cbjax
from cbjax.config import experiments
from cbjax.experiment.answers import read_answers
from cbjax.report import capacities
from cbjax.results import read_capacity
from tests.experiment.toy import toy

# Many cells, each of which compiles programs of its own.
SLOW = {
    "admission", "batching_modes", "block_context", "burstiness", "capacity", "closed_loop",
    "concurrency", "decode_stall", "fidelity", "kv_block_size", "kv_waste", "ladder", "ladder_load",
    "length_prediction", "load_curve", "orca_x_paging", "plan", "policies", "prefix_sharing",
    "priorities", "published", "token_budget", "victims",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in experiments()
    ],
)
def test_an_experiment_runs_and_leaves_its_files(name, tmp_path):
    experiment = toy(name, tmp_path)
    result = cbjax.run_experiment(experiment)

    assert result.folder.parent == tmp_path / "results" / name
    labels = [cell.label for cell in experiment.cells]
    search = experiment.study.search
    if search is None:
        assert [run.label for run in result.runs if run.label in labels] == labels
    else:
        found = capacities(read_capacity(result.folder))
        once = [run.label for run in result.runs if run.label in labels]
        assert search.only_with_slo or not once
        assert found["label"].to_list() == [label for label in labels if label not in once]
        assert (found["capacity"] > 0).all()
    assert (result.folder / "study.json").is_file() and result.figures
    comparison = pl.read_parquet(result.folder / "comparison.parquet")
    assert len(comparison) == len(result.runs)
    assert not comparison["differs"].any(), "all differences are swept ones"
    cells = {cell.label: cell for cell in experiment.cells}
    for run in result.runs:
        # A search adds its load to the label, a fit what it simulated.
        cell = cells[run.label if run.label in cells else run.label.rpartition(", ")[0]]
        served = run.metrics["completed"] + run.metrics["rejected"]
        assert served == len(run.tables.requests) and run.metrics["completed"] > 0
        written = yaml.safe_load((run.folder / "config.yaml").read_text())
        assert written["policy"] == cell.config.policy
        if written["backend"]["name"] == "model":
            assert run.environment["compiles_after_start"] == 0
            assert len(read_answers(run.folder)) == len(run.tables.requests)
