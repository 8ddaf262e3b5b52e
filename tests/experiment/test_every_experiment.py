"""Every experiment file runs, at toy size, from Python, and leaves what a study should."""

import polars as pl
import pytest
import yaml

import cbjax
from cbjax.config import experiments
from cbjax.experiment.answers import read_answers
from tests.experiment.toy import toy


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_runs_and_leaves_its_files(name, tmp_path):
    experiment = toy(name, tmp_path)
    result = cbjax.run_experiment(experiment)

    assert result.folder.parent == tmp_path / "results" / name
    assert [run.label for run in result.runs] == [cell.label for cell in experiment.cells]
    assert (result.folder / "study.json").is_file() and result.figures
    comparison = pl.read_parquet(result.folder / "comparison.parquet")
    assert len(comparison) == len(result.runs)
    assert not comparison["differs"].any(), "all differences are swept ones"
    for run, cell in zip(result.runs, experiment.cells, strict=True):
        served = run.metrics["completed"] + run.metrics["rejected"]
        assert served == len(run.tables.requests) and run.metrics["completed"] > 0
        written = yaml.safe_load((run.folder / "config.yaml").read_text())
        assert written["policy"] == cell.config.policy
        if cell.config.backend.name == "model":
            assert run.environment["compiles_after_start"] == 0
            assert len(read_answers(run.folder)) == len(run.tables.requests)
