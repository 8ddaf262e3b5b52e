"""Cells through Hydra's launcher plugins: the same runs, elsewhere; needs the extra `launchers`."""

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import cbjax
from cbjax.config import ConfigError
from cbjax.experiment import runner
from cbjax.experiment.elsewhere import Task
from cbjax.experiment.study import run_experiment
from tests.experiment.toy import toy

PLUGINS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "ray": ["hydra.launcher.ray.init.num_cpus=2"],
    "submitit": [],
}
# Under the unit clock; cells without a longest sequence fail where they run.
SWEEP = [
    "policy=vllm", "seats=1,2", "model.max_length=32,null", "study.figures=none",
    "study.timeline=false",
]
LABELS = ["seats=1, max_length=32", "seats=2, max_length=32"]


def installed(launcher: str) -> bool:
    return find_spec("hydra_plugins") is not None and (
        find_spec(f"hydra_plugins.hydra_{launcher}_launcher") is not None
    )


@pytest.mark.slow
@pytest.mark.parametrize("launcher", PLUGINS)
def test_launched_cells_are_those_of_this_process(tmp_path, launcher):
    if not installed(launcher):
        pytest.skip(f"the extra launchers is not installed (hydra-{launcher}-launcher)")
    chosen = [f"launcher={launcher}", *PLUGINS[launcher]]
    said: list[str] = []
    there = run_experiment(toy("worked_example", tmp_path, *SWEEP, *chosen), say=said.append)
    assert [one.label for one in there.runs] == LABELS
    assert [one.label for one in there.failed] == ["seats=1, max_length=null",
                                                   "seats=2, max_length=null"]
    assert there.failed[0].error.startswith("ConfigError: model.max_length = null")
    assert there.comparison["error"].count() == 2
    assert sum("/4]" in text for text in said) == 4
    assert (there.folder / "launch").is_dir(), "where a cell failed, the launcher's logs are kept"

    here = run_experiment(toy("worked_example", tmp_path / "here", *SWEEP))
    for ours, theirs in zip(here.runs, there.runs, strict=True):
        assert ours.config == theirs.config and ours.metrics == theirs.metrics
    again = run_experiment(
        toy("worked_example", tmp_path, *SWEEP, "model.max_length=32", *chosen)
    )
    assert len(again.reused) == 2, "nothing is launched for what is finished"


def test_a_launcher_that_loses_a_process_loses_no_other_cell(tmp_path, monkeypatch):
    def launched(cells, study, launcher, isolate):
        Task(tuple(cells), study, isolate)(SimpleNamespace(cell=0))
        raise RuntimeError("a worker was killed")

    monkeypatch.setattr(runner, "launched", launched)
    experiment = toy("worked_example", tmp_path, *SWEEP, "model.max_length=32")
    done = run_experiment(replace(experiment, launcher={"_target_": "any"}))
    assert [one.label for one in done.runs] == ["seats=1"]
    [failed] = done.failed
    assert failed.label == "seats=2" and "a worker was killed" in failed.error
    assert cbjax.collect_runs(tmp_path)["error"].count() == 1
    assert run_experiment(experiment).reused == ("seats=1",)


def test_a_launcher_that_is_not_installed_is_named():
    missing = [launcher for launcher in PLUGINS if not installed(launcher)]
    if not missing:
        pytest.skip("all launchers are installed")
    with pytest.raises(ConfigError, match=r'pip install "cbjax\[launchers\]"'):
        cbjax.load_config("worked_example", [f"launcher={missing[0]}"])


def test_the_launcher_is_part_of_the_experiment_and_not_of_its_runs():
    """hydra 2946: a launcher chosen in a swept experiment's file was ignored."""
    plain = cbjax.load_config("worked_example")
    assert plain.launcher == {}
    if installed("joblib"):
        chosen = cbjax.load_config("worked_example", ["hydra/launcher=joblib"])
        assert chosen.launcher["_target_"].endswith("JoblibLauncher")
        assert chosen.cells == plain.cells


@pytest.mark.parametrize(
    "plugin, chosen, path",
    [
        ("ray", ["launcher=ray", "hydra.launcher.ray.remote.num_gpus=1"],
         ["ray", "remote", "num_gpus"]),
        ("submitit", ["launcher=slurm", "hydra.launcher.gpus_per_node=1"], ["gpus_per_node"]),
    ],
)
def test_a_device_for_every_cell_can_be_asked_for(plugin, chosen, path):
    """hydra 1331: jobs of a sweep met on one device."""
    if not installed(plugin):
        pytest.skip(f"the extra launchers is not installed (hydra-{plugin}-launcher)")
    found = cbjax.load_config("worked_example", chosen).launcher
    for name in path:
        found = found[name]
    assert found == 1


def test_a_search_refuses_a_launcher_and_does_not_ignore_it(tmp_path):
    experiment = toy("capacity", tmp_path)
    with pytest.raises(ConfigError, match="launcher: study.search"):
        run_experiment(replace(experiment, launcher={"_target_": "any"}))


def test_a_launcher_in_the_file_of_a_sweep_counts(own_experiment):
    """hydra 2946, and ANCHORS 3.3: chosen in a swept file, it was reported and not used."""
    if not installed("joblib"):
        pytest.skip("needs cbjax[launchers]")
    own_experiment("swept", [{"override /launcher": "joblib"}], study={"grid": {"seats": [1, 2]}})
    experiment = cbjax.load_config("swept", ["kv.block_size=4,8"])
    assert experiment.launcher["_target_"].endswith("JoblibLauncher")
    assert len(experiment.cells) == 4
