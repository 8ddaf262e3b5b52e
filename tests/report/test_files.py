"""Redrawing needs the files and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from cbjax.metrics import summarise
from cbjax.report import NotDrawable, files, paired, redraw
from cbjax.report.__main__ import main
from cbjax.report.files import FIGURES
from cbjax.results import describe_environment, open_study

RUN_FIGURES = [
    "gaps.png", "latencies.png", "occupancy.png", "padding.png", "timeline.png", "trace.json"
]


def drawn(folder) -> list[str]:
    return sorted(path.name for path in (folder / "figures").iterdir())


@pytest.fixture
def make_study(tmp_path, batcher_run):
    """A study whose cells are given as label -> settings of the fake batcher."""

    def make(cells, swept):
        with open_study(tmp_path / "results", "demo", {"n": len(cells)}, swept=swept) as study:
            for label, knobs in cells.items():
                tables = batcher_run(label, count=3, **knobs).tables
                study.save_run(
                    {"budget": 128, "kv": {"block_size": 16}, **knobs.get("config", {})},
                    0,
                    label=label,
                    policy="vllm",
                    environment=describe_environment(),
                    summary=summarise(tables.requests, tables.iterations, backend="simulated"),
                    tables=tables,
                )
        return study.path

    return make


def test_a_run_is_redrawn(runs):
    _, (report, *written) = redraw(runs[0].folder)
    assert sorted(path.name for path in written) == RUN_FIGURES == drawn(runs[0].folder)
    assert report == runs[0].folder / "report.html" and report.is_file()


def test_a_study_and_its_runs_are_read_once(make_study, monkeypatch):
    cells = {"a": {"config": {"budget": 64}}, "b": {"config": {"budget": 128}}}
    path = make_study(cells, ["budget"])
    redraw(next((path / "runs").iterdir()))
    read = []
    for name in ("read_run", "collect_runs"):
        function = getattr(files, name)
        monkeypatch.setattr(
            files, name, lambda folder, of=function: (read.append(Path(folder).name), of(folder))[1]
        )
    monkeypatch.setattr(paired, "read_requests", None)
    redraw(path)
    assert sorted(read) == sorted([path.name, *(run.name for run in (path / "runs").iterdir())])


def test_runs_with_fewer_rows_give_fewer_figures(runs):
    folder = runs[0].folder
    for name in ("schedule", "memory"):
        (folder / f"{name}.parquet").unlink()
    redraw(folder)
    assert drawn(folder) == ["gaps.png", "latencies.png", "occupancy.png", "padding.png"]


def test_a_study_is_compared_and_its_drawn_runs_are_redrawn(make_study):
    cells = {"a": {"config": {"budget": 64}}, "b": {"config": {"budget": 128}}}
    path = make_study(cells, ["budget"])
    assert len(redraw(path)[1]) == 3 + len(RUN_FIGURES)
    assert drawn(path) == ["by_run.png", "comparison.txt", *RUN_FIGURES]
    first = next((path / "runs").iterdir())
    redraw(first)
    assert len(redraw(path)[1]) == 3 + 2 * len(RUN_FIGURES)


def test_many_variants_are_rows_of_several_tables_and_drawn_too(make_study):
    # The first has no such setting, so that the setting cannot name the rows.
    cells = {f"variant {n}": {"config": {"chunk": n} if n else {}} for n in range(7)}
    path = make_study(cells, ["chunk"])
    redraw(path)
    assert drawn(path) == ["by_run.png", "comparison.txt", *RUN_FIGURES]
    text = (path / "figures" / "comparison.txt").read_text()
    assert text.count("variant 6") == 3
    assert "cannot be told from one seed" in text
    assert "recomputed" in text


def test_a_timeline_too_long_to_be_read_is_left_out(make_study, monkeypatch):
    monkeypatch.setattr("cbjax.report.timeline.MOST_SEATS", 1)
    path = make_study({"a": {}, "b": {"config": {"budget": 64}}}, ["budget"])
    redraw(path)
    assert "timeline.png" not in drawn(path) and "gaps.png" in drawn(path)


def test_a_report_of_many_runs_leaves_the_timelines_to_the_single_runs(make_study, monkeypatch):
    path = make_study({"a": {}, "b": {"config": {"budget": 64}}}, ["budget"])
    monkeypatch.setattr("cbjax.report.files.FIGURES", {})
    with_timeline = "timeline-data"
    assert with_timeline in redraw(path)[1][0].read_text()
    monkeypatch.setattr("cbjax.report.files.MOST_DRAWN", 1)
    report = redraw(path)[1][0].read_text()
    assert with_timeline not in report and "study.json" in report


def test_a_sweep_over_two_settings_becomes_a_grid(make_study):
    cells = {
        f"{budget} {block}": {"config": {"budget": budget, "kv": {"block_size": block}}}
        for budget in (64, 128)
        for block in (8, 16)
    }
    path = make_study(cells, ["budget", "kv.block_size"])
    redraw(path)
    assert drawn(path) == ["comparison.txt", "grid.png"]
    assert "KV block" in (path / "figures" / "comparison.txt").read_text()


def test_the_command_prints_the_table_and_the_places(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main([str(runs[0].folder)]) == 0
    printed = capsys.readouterr().out
    assert "output tokens/s" in printed
    assert str(runs[0].folder / "figures" / "timeline.png") in printed


def test_a_folder_that_is_neither_is_a_clear_error(tmp_path, capsys):
    with pytest.raises(NotDrawable, match="neither a study"):
        redraw(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "give results/<experiment>/<study hash>" in capsys.readouterr().err


def test_reports_need_no_jax():
    program = "import sys, cbjax.report, cbjax.metrics; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_figures_come_in_every_format_asked_for(runs, capsys, monkeypatch):
    monkeypatch.setattr("cbjax.report.files.FIGURES", {"gaps": FIGURES["gaps"]})
    folder = runs[0].folder
    assert main([str(folder), "--format", "pdf,svg"]) == 0
    assert drawn(folder) == ["gaps.pdf", "gaps.png", "gaps.svg", "trace.json"]
    before = {name: (folder / "figures" / name).read_bytes() for name in ("gaps.pdf", "gaps.svg")}
    main([str(folder), "--format", "pdf,svg"])
    for name, content in before.items():
        assert (folder / "figures" / name).read_bytes() == content, f"{name} differs when redrawn"
    with pytest.raises(SystemExit):
        main([str(folder), "--format", "gif"])
    assert "'gif': use png, svg, pdf" in capsys.readouterr().err
