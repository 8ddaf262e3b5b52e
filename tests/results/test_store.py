"""A folder with a final name is finished, and belongs to one writer."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import polars as pl
import pytest

from cbjax.results import (
    FolderInUse,
    NotARun,
    identity_hash,
    is_finished,
    is_study,
    open_study,
    read_run,
    source_digest,
)

CONFIG = {"policy": {"name": "vllm"}, "kv": {"block_size": 16}}


def visible(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_study_leaves_the_documented_files(tmp_path, files):
    about = {"command": "python -m cbjax.run +experiment=demo"}
    with open_study(tmp_path, "demo", CONFIG, swept=["kv.block_size"], about=about) as study:
        for block_size in (16, 32):
            config = {**CONFIG, "kv": {"block_size": block_size}}
            assert study.find_run(config, 0) is None
            study.save_run(config, 0, **files)
    assert study.folder == study.path == tmp_path / "demo" / study.path.name
    assert visible(study.path) == ["comparison.parquet", "runs", "study.json"]
    runs = study.runs()
    assert [run.config["kv"]["block_size"] for run in runs] == [16, 32]
    assert visible(runs[0].folder) == [
        "config.yaml",
        "environment.json",
        "iterations.parquet",
        "memory.parquet",
        "requests.parquet",
        "schedule.parquet",
        "summary.json",
    ]
    index = json.loads((study.path / "study.json").read_text())
    assert index["swept"] == ["kv.block_size"] and index["command"] == about["command"]
    assert index["runs"] == [run.folder.name for run in runs]
    comparison = pl.read_parquet(study.path / "comparison.parquet")
    assert comparison["kv.block_size"].to_list() == [16, 32]
    assert (study.path / comparison["folder"][0] / "summary.json").is_file()
    assert os.listdir(tmp_path / "demo") == [study.path.name]


def test_a_run_reads_back_as_it_was_written(tmp_path, files):
    with open_study(tmp_path, "demo", CONFIG) as study:
        run = study.save_run(CONFIG, 3, names={0: "A"}, **files)
    run = read_run(study.path / "runs" / run.folder.name)
    assert (run.label, run.policy, run.seed, run.names) == ("vllm", "vllm", 3, {0: "A"})
    assert run.config == CONFIG
    assert run.metrics["ttft_s"]["p50"] == 1.0
    assert run.tables.requests.equals(files["tables"].requests)
    assert run.tables.schedule is not None
    assert run.tables.schedule.equals(files["tables"].schedule)
    assert run.environment["compile_s"] == 1.5
    with pytest.raises(NotARun, match="is not a run: it has no summary.json"):
        read_run(tmp_path)


def test_a_finished_study_is_found_and_force_replaces_it(tmp_path, files):
    with open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
        assert not study.finished
    (study.path / "mark").touch()
    with open_study(tmp_path, "demo", CONFIG) as again:
        assert again.finished
        assert again.find_run(CONFIG, 0).label == "vllm"
    assert (study.path / "mark").exists()
    with open_study(tmp_path, "demo", CONFIG, force=True) as redone:
        assert not redone.finished
        assert redone.find_run(CONFIG, 0) is None
        assert is_study(study.path)
        redone.save_run(CONFIG, 0, **{**files, "label": "new"})
    assert visible(tmp_path / "demo") == [study.path.name]
    assert not (study.path / "mark").exists()
    assert redone.runs()[0].label == "new"


def test_an_interrupt_leaves_nothing_that_looks_finished_but_keeps_finished_runs(tmp_path, files):
    second = {**CONFIG, "kv": {"block_size": 32}}
    with pytest.raises(KeyboardInterrupt), open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
        with study.new_run(second, 0) as folder:
            (folder / "summary.json").write_text("{}")
            raise KeyboardInterrupt
    assert visible(tmp_path / "demo") == []
    with open_study(tmp_path, "demo", CONFIG) as study:
        assert not study.finished
        assert study.find_run(CONFIG, 0) is not None
        assert study.find_run(second, 0) is None
    assert visible(tmp_path / "demo") == [study.path.name]


def test_a_study_that_fails_before_its_first_run_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), open_study(tmp_path, "demo", CONFIG):
        raise RuntimeError
    assert os.listdir(tmp_path / "demo") == []


def test_runs_that_the_study_no_longer_asks_for_are_not_kept(tmp_path, files):
    with pytest.raises(RuntimeError), open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run({"stray": 1}, 0, **files)
        raise RuntimeError
    with open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
    assert len(list((study.path / "runs").iterdir())) == 1


def test_two_at_once_never_share_a_folder(tmp_path):
    """FAULTS L1: the second start is refused with a clear error, other settings are not."""
    with open_study(tmp_path, "demo", CONFIG):
        with pytest.raises(FolderInUse, match=f"being written by process {os.getpid()}"):
            with open_study(tmp_path, "demo", CONFIG):
                pass
        with open_study(tmp_path, "demo", CONFIG, seed=1):
            pass
    with open_study(tmp_path, "demo", CONFIG):
        pass


def start_slow_study(tmp_path) -> subprocess.Popen:
    # The other process reads the source anew; so must this one, should a file have been edited.
    source_digest.cache_clear()
    program = textwrap.dedent(f"""
        import time
        from cbjax.results import open_study
        with open_study({str(tmp_path)!r}, "demo", {CONFIG!r}) as study:
            (study.folder / "figures").mkdir()
            print("ready", flush=True)
            time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_killed_process_leaves_no_finished_folder_and_no_lock(tmp_path, files):
    process = start_slow_study(tmp_path)
    try:
        with pytest.raises(FolderInUse, match=f"process {process.pid}"):
            with open_study(tmp_path, "demo", CONFIG):
                pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert visible(tmp_path / "demo") == []
    assert [path.name for path in (tmp_path / "demo").glob("*.lock")] != []
    with open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
    assert os.listdir(tmp_path / "demo") == [study.path.name]


def test_ctrl_c_in_another_process_releases_the_folder(tmp_path):
    process = start_slow_study(tmp_path)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)
    assert visible(tmp_path / "demo") == []
    started = time.monotonic()
    with open_study(tmp_path, "demo", CONFIG):
        pass
    assert time.monotonic() - started < 5


def test_a_kill_between_the_renames_of_a_forced_study_keeps_the_old_one(tmp_path, files):
    with open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
    study.path.rename(study.path.with_name(f".{study.path.name}.old"))
    with open_study(tmp_path, "demo", CONFIG) as found:
        assert found.finished


def test_experiment_names_are_folder_names(tmp_path):
    for name in ("", "../up", ".hidden", "a/b"):
        with pytest.raises(ValueError, match="must be a plain name"):
            with open_study(tmp_path, name, CONFIG):
                pass


def told(files):
    return {key: files[key] for key in ("label", "policy", "environment")}


def test_a_study_with_a_failure_is_found_unfinished_and_keeps_its_other_runs(tmp_path, files):
    bad = {**CONFIG, "kv": {"block_size": 32}}
    with open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
        study.save_failure(bad, 0, backend="test", error="ValueError: no", **told(files))
        assert study.find_run(bad, 0) is None and study.find_failure(bad, 0) == "ValueError: no"
    with pytest.raises(NotARun, match="failed: ValueError: no"):
        read_run(study.path / "runs" / identity_hash(bad, 0))
    with open_study(tmp_path, "demo", CONFIG) as again:
        assert not again.finished and is_study(study.path), "the old one stays until this is done"
        assert again.has_run(CONFIG, 0) and not again.has_run(bad, 0)
        assert again.find_run(CONFIG, 0).label == "vllm"
        again.save_run(bad, 0, **files)
        assert again.find_failure(bad, 0) is None
    assert len(again.runs()) == 2
    with open_study(tmp_path, "demo", CONFIG) as last:
        assert last.finished


def test_runs_are_taken_over_from_other_studies_under_the_label_of_this_one(tmp_path, files):
    with open_study(tmp_path, "demo", {"sweep": 1}) as first:
        first.save_run(CONFIG, 0, **files)
    with open_study(tmp_path, "demo", {"sweep": 2}) as second:
        taken = second.find_run(CONFIG, 0, "seats=2")
        assert taken.label == "seats=2" and taken.tables.requests.equals(files["tables"].requests)
        assert is_finished(tmp_path, "demo", CONFIG, 0)
        assert not is_finished(tmp_path, "other", CONFIG, 0)
    assert first.runs()[0].label == "vllm"
    with open_study(tmp_path, "other", {"sweep": 2}) as other:
        assert other.find_run(CONFIG, 0) is None, "another experiment's are another's"
