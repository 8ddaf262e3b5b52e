"""A study is done once, taken up where it was left, and never looks finished when it is not."""

import pytest

import cbjax
from cbjax.config import ConfigError
from cbjax.experiment import backends
from cbjax.experiment.study import run_experiment
from cbjax.results import FolderInUse, is_run, is_study
from tests.experiment.toy import toy


@pytest.fixture
def served(monkeypatch):
    """The labels of cells that were really served; a test may make serving fail."""
    labels: list[str] = []
    real = backends.get

    def get(name):
        def serve(config, *arguments):
            labels.append(config.policy["name"])
            return real(name)(config, *arguments)

        return serve

    monkeypatch.setattr(backends, "get", get)
    return labels


def example(folder, *overrides):
    return toy("worked_example", folder, "study.figures=none", *overrides)


def test_a_finished_study_is_shown_and_not_run_again(tmp_path, served):
    first = run_experiment(example(tmp_path))
    said: list[str] = []
    second = run_experiment(example(tmp_path), say=said.append)
    assert served == ["static", "vllm"]
    assert second.reused == ("static", "continuous") and second.folder == first.folder
    assert all("finished before" in text for text in said)
    assert [run.metrics for run in second.runs] == [run.metrics for run in first.runs]


def test_force_runs_it_again(tmp_path, served):
    run_experiment(example(tmp_path))
    again = run_experiment(example(tmp_path, "force=true"))
    assert served == ["static", "vllm"] * 2 and again.reused == ()


def test_other_settings_are_another_study(tmp_path, served):
    folders = {
        run_experiment(example(tmp_path, *overrides)).folder
        for overrides in ([], ["seed=1"], ["workload.requests.B.output_tokens=3"])
    }
    assert len(folders) == 3 and len(served) == 6


def test_an_interrupted_study_looks_unfinished_and_goes_on_later(tmp_path, monkeypatch):
    real = backends.get

    def get(name):
        def serve(config, workload, recorder, *rest):
            done = real(name)(config, workload, recorder, *rest)
            if config.policy["name"] == "vllm":
                raise KeyboardInterrupt("in the middle of the second cell")
            return done

        return serve

    with monkeypatch.context() as patched:
        patched.setattr(backends, "get", get)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(example(tmp_path))
    home = tmp_path / "results" / "worked_example"
    visible = [path for path in home.iterdir() if not path.name.startswith(".")]
    assert visible == [], "nothing bears a final name"
    assert sum(is_run(path.parent) for path in home.rglob("summary.json")) == 1
    assert cbjax.collect_runs(tmp_path / "results").is_empty()

    result = run_experiment(example(tmp_path))
    assert result.reused == ("static",) and is_study(result.folder)


def test_two_at_once_never_share_a_folder(tmp_path):
    """FAULTS L1."""
    experiment, refused = example(tmp_path), []

    def start_another(label, done, total):
        try:
            run_experiment(experiment)
        except FolderInUse as error:
            refused.append(str(error))

    run_experiment(experiment, progress=start_another)
    assert refused and "is being written by process" in refused[0]


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["kv.num_blocks=null"], ["kv.num_blocks", "give a number"]),
        (["ladder.mixed=[0]"], ["ladder.mixed", "0"]),
        (["iteration_tokens=1"], ["iteration_tokens = 1", "max_batch_size = 2"]),
    ],
)
def test_what_only_the_engine_can_judge_is_a_setting_too(tmp_path, overrides, parts):
    with pytest.raises(ConfigError) as caught:
        run_experiment(example(tmp_path, *overrides))
    assert all(part in str(caught.value) for part in parts)
