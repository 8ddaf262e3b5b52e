"""Sweeps that do not bite: what irritates users of Hydra's sweeps, see ANCHORS 3.2 and 3.3."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

import cbjax
from cbjax import run
from cbjax.config import ConfigError, paths
from cbjax.experiment import backends, elsewhere, estimate_cells
from cbjax.experiment.elsewhere import Task
from cbjax.experiment.study import run_experiment
from tests.experiment.test_command_line import COMMAND, _environment
from tests.experiment.toy import toy

GRID = ["seats=1,2", "kv.block_size=4,8", "study.figures=none", "study.timeline=false"]


def grid(folder, *overrides):
    """Four cells of one policy under the unit clock."""
    return toy("worked_example", folder, "policy=vllm", *GRID, *overrides)


@pytest.fixture
def served(monkeypatch):
    """Settings of the cells that were really served; those in `failing` end with an error."""
    real = backends.get

    class Served(list):
        failing: dict[tuple[int, int], Exception] = {}

    cells = Served()

    def get(name):
        def serve(config, *arguments):
            cell = (config.policy["max_num_seqs"], config.kv.block_size)
            cells.append(cell)
            if cell in cells.failing:
                raise cells.failing[cell]
            return real(name)(config, *arguments)

        return serve

    monkeypatch.setattr(backends, "get", get)
    return cells


def test_a_sweep_runs_with_and_without_the_flag_and_is_done_once(tmp_path, capsys, served):
    """The same study either way: no dated folder, nothing of Hydra's own left behind."""
    arguments = ["+experiment=worked_example", "policy=vllm", *GRID, f"results_dir={tmp_path}"]
    assert run.main(["-m", *arguments]) == 0
    assert len(served) == 4
    assert "cells   4" in capsys.readouterr().out
    assert run.main(arguments) == 0
    assert len(served) == 4
    assert "finished before" in capsys.readouterr().out
    [study] = (tmp_path / "worked_example").iterdir()
    assert {path.name for path in study.iterdir()} == {"study.json", "comparison.parquet", "runs"}
    assert [path.name for path in tmp_path.iterdir()] == ["worked_example"]


def test_one_failing_cell_does_not_lose_the_others(tmp_path, served, capsys):
    """hydra 2824, PR 1465: a sweep stopped at the first failure."""
    served.failing = {(2, 4): MemoryError("no room for 2 seats\nat all")}
    arguments = ["+experiment=worked_example", "policy=vllm", *GRID, f"results_dir={tmp_path}"]
    assert run.main(arguments) == run.FAILED
    shown = capsys.readouterr().out
    assert len(served) == 4
    assert "failed  seats=2, block_size=4: MemoryError: no room for 2 seats" in shown
    assert "4, 1 failed" in shown

    [study] = (tmp_path / "worked_example").iterdir()
    rows = pl.read_parquet(study / "comparison.parquet")
    [bad] = rows.filter(pl.col("error").is_not_null()).to_dicts()
    assert bad["label"] == "seats=2, block_size=4" and bad["kv.block_size"] == 4
    assert bad["error"] == "MemoryError: no room for 2 seats" and bad["ttft_s.p95"] is None
    assert rows["ttft_s.p95"].count() == 3
    told = json.loads((study / bad["folder"] / "error.json").read_text())
    assert "Traceback" in told["traceback"]

    # The same command tries it again, and only it.
    served.failing = {}
    assert run.main(arguments) == 0
    assert served[4:] == [(2, 4)]
    rows = cbjax.collect_runs(tmp_path)
    assert len(rows) == 4 and rows["error"].null_count() == 4
    assert rows["label"][2] == "seats=2, block_size=4", "in the order of the grid"


def test_where_no_cell_comes_through_the_first_error_is_raised(tmp_path, served):
    served.failing = {(a, b): ValueError(f"{a} {b}") for a in (1, 2) for b in (4, 8)}
    with pytest.raises(ValueError, match="1 4"):
        run_experiment(grid(tmp_path))
    assert len(served) == 4
    assert cbjax.collect_runs(tmp_path).is_empty()


def test_a_longer_sweep_runs_only_the_new_cells_and_leaves_the_old_one_alone(tmp_path, served):
    """Resuming is by cell and not by sweep; labels are those of the sweep at hand."""
    first = run_experiment(grid(tmp_path, "seats=2"))
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    assert [one.label for one in first.runs] == ["block_size=4", "block_size=8"]
    assert len(served) == 2
    longer = run_experiment(grid(tmp_path))
    assert served[2:] == [(1, 4), (1, 8)]
    assert longer.reused == ("seats=2, block_size=4", "seats=2, block_size=8")
    assert [one.label for one in longer.runs][2:] == list(longer.reused)
    assert longer.folder != first.folder
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before
    rows = cbjax.collect_runs(tmp_path)
    assert len(rows) == 4, "what two studies have in common is one row"
    run_experiment(grid(tmp_path, "force=true"))
    assert len(served) == 8


def test_repeats_have_seeds_that_follow_the_base(tmp_path):
    experiment = grid(tmp_path, "seats=2", "kv.block_size=4", "repeats=3", "seed=5")
    assert [cell.config.seed for cell in experiment.cells] == [5, 6, 7]
    assert experiment.cells[0].label == "seed=5" and experiment.swept == []
    with pytest.raises(ConfigError, match="repeats = 2: seed is swept already"):
        grid(tmp_path, "repeats=2", "seed=range(3)")


def test_the_time_left_is_told(tmp_path, monkeypatch):
    moments = iter(range(0, 1000, 30))
    monkeypatch.setattr("cbjax.experiment.pace.time.monotonic", lambda: float(next(moments)))
    said, bars = [], []
    run_experiment(
        grid(tmp_path), say=said.append, progress=lambda *told: bars.append(told)
    )
    assert said[0] == "[1/4] seats=1, block_size=4"
    assert said[1].startswith("[2/4] seats=1, block_size=8 (about ") and "left)" in said[1]
    cells = [told for told in bars if told[0].startswith("cells")]
    assert [done for _, done, _ in cells] == [1, 2, 3, 4] and {total for *_, total in cells} == {4}


def test_dry_run_prints_the_cells_and_starts_nothing(tmp_path, capsys, served):
    place = tmp_path / "r"
    arguments = ["+experiment=worked_example", "policy=vllm", *GRID, f"results_dir={place}"]
    assert run.main([*arguments, "dry_run=true"]) == 0
    shown = capsys.readouterr().out
    assert served == [] and not place.exists()
    assert "seats=2, block_size=8" in shown and "nothing was started" in shown
    with pytest.raises(ConfigError, match="dry_run"):
        run_experiment(grid(tmp_path, "dry_run=true"))

    estimated = estimate_cells(grid(tmp_path))
    assert estimated["by"].unique().to_list() == ["rule of thumb"]
    run_experiment(grid(tmp_path, "seats=2"))
    estimated = estimate_cells(grid(tmp_path))
    assert estimated["finished"].to_list() == [False, False, True, True]
    assert estimated["by"].unique().to_list() == ["finished runs"]
    assert estimated["seconds"].min() > 0 and estimated["memory_bytes"].min() > 1e8


def test_a_models_memory_is_estimated_without_loading_it():
    experiment = cbjax.load_config("quickstart", ["kv.num_blocks=1024", "policy=vllm"])
    cell = estimate_cells(experiment).to_dicts()[-1]
    # 135M parameters and 1024 x 16 positions of 30 layers x 3 heads x 64, in 4 bytes.
    assert cell["memory_bytes"] == pytest.approx(5e8 + 4 * 134.5e6 + 16384 * 46080, rel=0.01)
    searched = cbjax.load_config("capacity", ["policy=vllm"])
    assert estimate_cells(searched)["runs"][0] > 1


@pytest.mark.parametrize("policy", ["vllm", pytest.param("sglang", marks=pytest.mark.slow)])
def test_simulated_cells_share_a_program_and_have_the_results_of_cells_run_alone(tmp_path, policy):
    """The same YAML: a grid over numbers runs on threads, in one program for the greatest pool."""
    overrides = [
        f"policy={policy}", "seats=4", "iteration_tokens=512", "workload.num_requests=24",
        "study.figures=none",
    ]
    together = run_experiment(toy(
        "token_budget", tmp_path / "together", "budget=64,512", "kv.num_blocks=64,128", *overrides
    ))
    assert len(together.runs) == 4 and not together.failed
    [apart] = [one for one in together.runs if one.label == "budget=512, num_blocks=64"]
    [alone] = run_experiment(toy(
        "token_budget", tmp_path / "alone", "budget=512", "kv.num_blocks=64", *overrides
    )).runs
    assert apart.config == alone.config and apart.metrics == alone.metrics
    assert apart.tables.requests.equals(alone.tables.requests)
    assert apart.tables.iterations.equals(alone.tables.iterations)


def test_simulated_cells_ask_for_one_set_of_capacities():
    cells = cbjax.load_config("token_budget", [
        "policy=vllm,sglang", "budget=64,512", "kv.block_size=8,16", "seed=range(2)"
    ]).cells
    shared: dict = {}
    assert backends.prepare([cell.config for cell in cells], shared) >= 1
    [capacities] = shared.values()
    assert len(capacities) == 2, "a program for each policy"
    exact = [replace(cell.config, record="tokens") for cell in cells]
    assert backends.prepare(exact, {}) == 1


def test_a_grid_in_a_file_needs_no_flag_also_one_written_for_hydras_sweeper(own_experiment):
    own_experiment("ours", study={"grid": {"seats": [1, 2], "kv.block_size": [4, 8]}})
    own_experiment("hydras", hydra={
        "mode": "MULTIRUN", "sweeper": {"params": {"seats": "1,2", "kv.block_size": "choice(4,8)"}}
    })
    ours, hydras = (cbjax.load_config(name).cells for name in ("ours", "hydras"))
    assert [cell.label for cell in ours] == [cell.label for cell in hydras]
    assert len(hydras) == 4 and hydras[3].config.policy["max_num_seqs"] == 2
    [cell, other] = cbjax.load_config("hydras", ["seats=1"]).cells
    assert cell.config.kv.block_size == 4 and other.config.kv.block_size == 8


def test_two_experiments_with_grids_are_refused_and_do_not_vanish(own_experiment, capsys):
    """hydra 2807: sweeping two files that each define a sweep ran one cell of each."""
    own_experiment("a", study={"grid": {"seats": [1, 2]}})
    own_experiment("b", study={"grid": {"seats": [1, 2]}})
    for arguments in (["-m", "+experiment=a,b"], ["+experiment=a", "+experiment=b"]):
        assert run.main(arguments) == run.WRONG
        assert "one experiment at a time" in capsys.readouterr().err


def test_a_files_own_values_win_over_those_of_its_groups(own_experiment):
    """sinusoidal-gradient-descent 4: a misplaced _self_ silently ran other values."""
    own_experiment("late", kv={"block_size": 2, "num_blocks": 16})
    own_experiment("early", kv={"block_size": 2, "num_blocks": 16})
    path = paths.config_dir() / "experiment" / "early.yaml"
    path.write_text(path.read_text().replace("defaults:\n", "defaults:\n- _self_\n"))
    cells = [cbjax.load_config(name).cells[0] for name in ("late", "early")]
    assert [cell.config.kv.block_size for cell in cells] == [2, 2]


def test_an_experiment_is_chosen_with_or_without_the_plus(own_experiment):
    """hydra 2628, 3031: the plus sign and the package line."""
    own_experiment("mine")
    for text in ("+experiment=mine", "experiment=mine"):
        assert run.read_arguments([text, "-m", "seats=1,2"]) == ("mine", ["seats=1,2"])
    path = paths.config_dir() / "experiment" / "mine.yaml"
    path.write_text(path.read_text().replace("# @package _global_\n", ""))
    with pytest.raises(ConfigError, match="begin the file with '# @package _global_'"):
        cbjax.load_config("mine")


def test_hydras_own_settings_that_would_be_ignored_are_refused(capsys):
    assert run.main(["+experiment=worked_example", "hydra.sweep.dir=elsewhere"]) == run.WRONG
    assert "results_dir" in capsys.readouterr().err


@pytest.mark.slow
def test_isolated_cells_have_fresh_processes(tmp_path):
    """hydra 2187: state leaked between the jobs of a process. The row says which it was."""
    inside = run_experiment(grid(tmp_path / "inside", "seats=2"))
    assert not any(one.environment["fresh_process"] for one in inside.runs[1:])
    isolated = run_experiment(grid(
        tmp_path / "isolated", "seats=2", "isolate=true", "model.max_length=32,null"
    ))
    assert [one.environment["fresh_process"] for one in isolated.runs] == [True, True]
    assert [one.metrics for one in isolated.runs] == [one.metrics for one in inside.runs]
    assert len(isolated.failed) == 2
    assert isolated.failed[0].error.startswith("ConfigError: model.max_length = null")


def test_where_compile_time_is_the_subject_every_cell_is_isolated():
    assert cbjax.load_config("ladder").isolate
    assert not cbjax.load_config("ladder", ["isolate=false"]).isolate


def test_an_isolated_cell_whose_process_is_killed_fails_alone(tmp_path, monkeypatch):
    def process(command, *, input, env):
        cell, study = pickle.loads(input)
        if cell.label == "seats=2, block_size=4":
            return SimpleNamespace(returncode=-signal.SIGKILL)
        Task((cell,), study, False)(SimpleNamespace(cell=0))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(elsewhere.subprocess, "run", process)
    done = run_experiment(grid(tmp_path, "isolate=true"))
    assert len(done.runs) == 3
    [failed] = done.failed
    assert failed.label == "seats=2, block_size=4" and "ended by SIGKILL" in failed.error
    assert done.comparison["error"].drop_nulls().to_list() == [failed.error]


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(tmp_path):
    arguments = [
        "-m", "+experiment=worked_example", "policy=vllm", "seats=1,2", f"results_dir={tmp_path}",
        "study.figures=none", "workload.requests.B.output_tokens=5,1000", "model.max_length=1200",
        "kv.num_blocks=600", "study.timeline=false",
    ]
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=_environment(), stdout=subprocess.DEVNULL
    )
    home, patience = tmp_path / "worked_example", time.monotonic() + 100
    while not list(home.glob(".*.partial/runs/*/summary.json")) and time.monotonic() < patience:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = {path.parent.name: path.stat().st_mtime_ns
                for path in home.glob(".*.partial/runs/*/summary.json")}
    assert 1 <= len(finished) < 4
    again = subprocess.run(
        [sys.executable, "-m", "cbjax.run", *arguments], env=_environment(), text=True,
        capture_output=True,
    )
    assert again.returncode == 0, again.stderr
    assert f"{len(finished)} of 4 cells finished before" in again.stdout
    [study] = [path for path in home.iterdir() if not path.name.startswith(".")]
    kept = {path.parent.name: path.stat().st_mtime_ns for path in study.glob("runs/*/summary.json")}
    assert len(kept) == 4 and finished.items() <= kept.items()


def test_a_study_with_repeats_ends_with_its_paired_differences(tmp_path, capsys):
    """Two policies on the same seeds: what differs, and how surely."""
    arguments = [
        "+experiment=worked_example", "policy=vllm,orca", "study.figures=none",
        "study.timeline=false", f"results_dir={tmp_path}",
    ]
    assert run.main([*arguments, "repeats=3"]) == 0
    shown = capsys.readouterr().out
    assert "paired differences against 'policy=vllm'" in shown
    assert "significant" in shown, "no significant difference, in words below one another"
    assert shown.index("paired differences") < shown.index("cells   6")
    assert run.main([*arguments, "seed=7"]) == 0
    assert "paired" not in capsys.readouterr().out, "one seed a setting"


def test_a_knob_that_some_policies_lack_is_noted(tmp_path, capsys):
    assert run.main([
        "+experiment=worked_example", "policy=vllm,orca", "policy.long_prefill_token_threshold=0,4",
        "study.figures=none", "study.timeline=false", f"results_dir={tmp_path}",
    ]) == 0
    shown = capsys.readouterr().out
    assert "note: orca has no policy.long_prefill_token_threshold" in shown
    assert "cells   3" in shown
