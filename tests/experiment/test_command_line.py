"""`python -m cbjax.run` as a user meets it: in process where possible, as a process where not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from cbjax import policies, run
from cbjax.config import experiments
from cbjax.results import is_study

COMMAND = [sys.executable, "-m", "cbjax.run"]


def test_alone_it_lists_the_experiments(capsys):
    assert run.main([]) == 0
    shown = capsys.readouterr().out
    for name, description in experiments().items():
        assert name in shown and description in shown
    listed = next(line for line in shown.splitlines() if line.split()[:1] == ["policy"])
    assert [name.strip() for name in listed.split(maxsplit=1)[1].split(",")] == policies.names


def test_help_imports_neither_jax_nor_hydra():
    code = "import sys; from cbjax import run; run.main(['--help']); print(sorted(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'jax'" not in shown.stdout and "'hydra'" not in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["+experiment=worked_example,quickstart"], ["one experiment at a time"]),
        (["+experiment=worked_example", "experiment=quickstart"], ["one experiment at a time"]),
        (["seats=3"], ["+experiment=<name>", "worked_example"]),
        (["+experiment=worked_exampel"], ["did you mean worked_example?"]),
        (["-m", "+experiment=worked_example", "sets=3"], ["sets = 3", "did you mean seats?"]),
        (["+experiment=real_prompts"], ["workload.path = None", "prompts.jsonl"]),
        (
            ["+experiment=real_prompts", "workload.path=nowhere.jsonl", "model=tiny"],
            ["workload.path = 'nowhere.jsonl'", "no such file"],
        ),
    ],
)
def test_a_mistake_ends_with_status_2_and_one_line(arguments, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run.main(arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and len(shown.strip().splitlines()) == 1
    assert all(part in shown for part in parts)
    assert list(tmp_path.glob("outputs")) == []


def test_cfg_prints_the_settings_of_every_run(capsys):
    assert run.main(["+experiment=worked_example", "--cfg"]) == 0
    shown = capsys.readouterr().out
    assert "max_batch_size: 2" in shown and "max_num_seqs: 2" in shown


def test_the_worked_example_prints_its_timeline_and_where_everything_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = subprocess.run(
        [*COMMAND, "+experiment=worked_example"], capture_output=True, text=True, env=_environment()
    )
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["C", "....PD"] in lines and ["C", "..PD"] in lines
    assert {path.name for path in tmp_path.iterdir()} == {"results"}
    assert "timeline.png" in shown.stdout and "Traceback" not in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_leaves_nothing_that_looks_finished(tmp_path, blow):
    arguments = [
        "+experiment=worked_example", f"results_dir={tmp_path}", "model.max_length=60000",
        "kv.num_blocks=20000", "workload.requests.B.output_tokens=50000", "study.figures=none",
    ]
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    home = tmp_path / "worked_example"
    patience = time.monotonic() + 120
    while not list(home.glob(".*.partial")) and time.monotonic() < patience:
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(blow)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if blow == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in errors.decode()
    assert not any(is_study(path) for path in home.iterdir() if not path.name.startswith("."))
    assert not list(home.rglob("summary.json"))


def _environment() -> dict[str, str]:
    """The package is found from any folder, installed or not."""
    source = os.path.dirname(os.path.dirname(run.__file__))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
