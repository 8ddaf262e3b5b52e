"""The scripts in experiments/ draw from a study's files alone."""

import json
import runpy
import sys
from pathlib import Path

import pytest

import cbjax
from tests.experiment.toy import toy

SCRIPTS = Path(__file__).parents[2] / "experiments"
OF_A_STUDY = ["by_run", "gaps", "timeline", "latencies", "occupancy", "padding"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return cbjax.run_experiment(toy("worked_example", folder, "study.figures=none")).folder


@pytest.mark.parametrize("name", OF_A_STUDY)
def test_a_script_draws_its_figure(name, study, tmp_path, monkeypatch, capsys):
    output = tmp_path / f"{name}.svg"
    monkeypatch.setattr(sys, "argv", [name, str(study), "-o", str(output)])
    monkeypatch.syspath_prepend(str(SCRIPTS))
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    assert output.stat().st_size > 1000
    assert str(output) in capsys.readouterr().out


def test_a_view_is_drawn_with_the_panels_asked_for(tmp_path, monkeypatch, capsys):
    swept = toy(
        "worked_example", tmp_path, "study.figures=none", "policy=vllm", "seats=1,2",
        "+study.views.curves={x: policy.max_num_seqs, metrics: [mean_running, kv_utilisation]}",
    )
    study, output = cbjax.run_experiment(swept).folder, tmp_path / "view.svg"
    monkeypatch.setattr(
        sys, "argv", ["view", str(study), "--metrics", "mean_running", "-o", str(output)]
    )
    monkeypatch.syspath_prepend(str(SCRIPTS))
    runpy.run_path(str(SCRIPTS / "view.py"), run_name="__main__")
    assert str(output) in capsys.readouterr().out
    drawn = output.read_text()
    assert "mean requests running" in drawn and "KV utilisation" not in drawn

    monkeypatch.setattr(sys, "argv", ["view", str(study), "--view", "classes"])
    with pytest.raises(SystemExit, match="--view classes: .* asks for curves"):
        runpy.run_path(str(SCRIPTS / "view.py"), run_name="__main__")


def test_leaps_are_drawn_from_the_rows_of_the_benchmark(tmp_path, monkeypatch, capsys):
    row = dict(requests=1000, iterations=100, turns=10, plain_s=0.2, leap_s=0.05)
    rows = [row | dict(mean_running=running) for running in (0.5, 20.0, 4.0)]
    source, output = tmp_path / "simulator.json", tmp_path / "leaps.svg"
    source.write_text(json.dumps(dict(rows=rows)))
    monkeypatch.setattr(sys, "argv", ["leaps", str(source), "-o", str(output)])
    runpy.run_path(str(SCRIPTS / "leaps.py"), run_name="__main__")
    assert "iterations per turn" in output.read_text()


def test_every_script_but_the_grid_is_tried():
    scripts = {path.stem for path in SCRIPTS.glob("*.py")} - {"arguments"}
    assert scripts == {*OF_A_STUDY, "budget_block_grid", "leaps", "view"}
