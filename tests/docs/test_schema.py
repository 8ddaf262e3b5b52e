"""docs/schema.md names every file, column and metric, and no others."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from cbjax.capacity import Bracket, Limit, Verdict
from cbjax.config import load_config
from cbjax.engine import serve_with_unit_clock
from cbjax.experiment.search import _rows
from cbjax.metrics import (
    ITERATION_COLUMNS,
    MEMORY_COLUMNS,
    REQUEST_COLUMNS,
    SCHEDULE_COLUMNS,
    Recorder,
    summarise,
)
from cbjax.policies import vllm
from cbjax.results import describe_environment, open_study
from cbjax.results.collect import FIXED_COLUMNS
from cbjax.workload import Arrivals, Workload, WorkloadRequest

TEXT = (Path(__file__).parents[2] / "docs" / "schema.md").read_text(encoding="utf-8")
WORDS = {
    pl.Int64(): "int", pl.Float64(): "float", pl.String(): "text", pl.Boolean(): "bool",
    pl.List(pl.Float64()): "list of float", pl.List(pl.String()): "list of text",
}


def table(heading: str) -> dict[str, list[str]]:
    """Name -> the other cells, of the first table under a heading."""
    part = re.split(rf"^#+ {re.escape(heading)}$", TEXT, flags=re.MULTILINE)[1]
    part = re.split(r"^#", part, flags=re.MULTILINE)[0]
    found = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                found[name] = cells[1:]
    return found


@pytest.fixture(scope="module")
def rows():
    request = WorkloadRequest(0, "", 0, 0.0, None, 2, 3, True, 0)
    recorder = Recorder()
    serve_with_unit_clock(
        vllm(max_num_batched_tokens=8, max_num_seqs=1), Workload((request,), Arrivals(), 0),
        recorder, num_blocks=16, max_length=16,
    )
    return recorder.tables()


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("requests.parquet", REQUEST_COLUMNS), ("iterations.parquet", ITERATION_COLUMNS),
        ("schedule.parquet", SCHEDULE_COLUMNS), ("memory.parquet", MEMORY_COLUMNS),
        ("comparison.parquet", FIXED_COLUMNS),
    ],
)
def test_every_column_is_described_in_its_place_with_its_type(file, columns):
    described = table(file)
    assert list(described) == list(columns)
    for name, kind in columns.items():
        assert described[name][0] == WORDS[kind], name
        assert described[name][1]


def test_every_metric_is_described(rows):
    summary = summarise(
        rows.requests, rows.iterations, schedule=rows.schedule, memory=rows.memory,
        backend="unit_clock",
    )
    assert set(table("metrics")) == set(summary["metrics"])
    # A run adds who it is.
    assert set(table("summary.json")) == set(summary) | {"label", "policy", "seed", "names"}
    assert set(summary["metrics"]["ttft_s"]) == {
        "mean", "p50", "p90", "p95", "p99", "max", "count"
    }


def test_every_fact_of_the_environment_is_described():
    assert set(table("environment.json")) == set(describe_environment())


def test_every_key_of_a_study_and_every_file_of_a_run_is_described(rows, tmp_path):
    with open_study(tmp_path, "example", {"seats": 1}) as study:
        run = study.save_run(
            {"seats": 1}, 0, label="one", policy="vllm", environment={}, tables=rows,
            summary={"metrics": {}}, names={0: "A"},
        )
        study.write_index()
        files = {file.name for file in [*run.folder.iterdir(), *study.folder.iterdir()]}
        keys = set(_json(study.folder / "study.json"))
    assert keys == set(table("study.json"))
    tree = re.search(r"```\n(results/.*?)```", TEXT, re.DOTALL)
    assert tree is not None
    assert files - {"runs"} <= set(re.findall(r"\w+\.\w+", tree[1]))


def test_every_column_of_a_search_is_described():
    [cell, *_] = load_config("worked_example").cells
    found = Bracket(1.0, 2.0, {1.0: Verdict((Limit("ttft p95", 0.5, 1.0),))})
    [row] = _rows(cell, 0, found)
    described = table("capacity.parquet")
    assert list(described) == list(row)
    words = {int: "int", float: "float", str: "text", bool: "bool"}
    assert {name: cells[0] for name, cells in described.items()} == {
        name: words[type(value)] for name, value in row.items()
    }


def _json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))
