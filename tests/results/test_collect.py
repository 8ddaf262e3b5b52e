"""One table over many runs: typed columns, units in names, differences flagged."""

import polars as pl
import pytest

from cbjax.results import collect_runs, describe_environment, flatten, open_study

CONFIG = {"policy": {"name": "vllm", "budget": 256}, "kv": {"block_size": 16}, "seed": 0}


def with_block_size(block_size: int, **more) -> dict:
    return {**CONFIG, "kv": {"block_size": block_size}, **more}


@pytest.fixture
def make_study(tmp_path, small_files):
    def make(configs, seed=0, facts=None):
        cells = {"cells": len(configs)}
        with open_study(tmp_path, "demo", cells, swept=["kv.block_size"], seed=seed) as study:
            for number, config in enumerate(configs):
                extra = (facts or {}).get(number, {})
                study.save_run(config, seed, **small_files(f"run {number}", **extra))
        return study

    return make


def test_a_study_becomes_one_row_per_run_in_order(tmp_path, make_study):
    study = make_study([with_block_size(32), with_block_size(8), with_block_size(16)])
    table = collect_runs(study.path)
    assert table["kv.block_size"].to_list() == [32, 8, 16]
    assert table["label"].to_list() == ["run 0", "run 1", "run 2"]
    assert table["experiment"].unique().to_list() == ["demo"]
    assert table["ttft_s.p95"].to_list() == [1.0, 1.0, 1.0]
    assert table["environment.compile_s"].to_list() == [1.5, 1.5, 1.5]
    assert table["config.seed"].to_list() == [0, 0, 0]
    assert table["policy.budget"].dtype == pl.Int64
    assert table["differs"].to_list() == [False, False, False]
    assert collect_runs(tmp_path).equals(table)
    assert len(collect_runs(tmp_path / table["folder"][0])) == 1


def test_runs_that_differ_outside_the_sweep_are_flagged(tmp_path, make_study):
    configs = [with_block_size(8), with_block_size(16), with_block_size(32, extra={"x": 1})]
    study = make_study(configs, facts={1: {"device": "TPU v5e"}})
    table = collect_runs(study.path)
    assert table["differs"].to_list() == [False, True, True]
    assert table["differing_keys"].to_list() == [[], ["environment.device"], ["extra.x"]]
    unswept = collect_runs(study.path, swept=[])
    assert "kv.block_size" in unswept["differing_keys"].explode().to_list()


def test_the_content_of_a_swept_file_may_differ_and_that_of_another_may_not(tmp_path, make_study):
    make_study([
        with_block_size(8, files={"kv.block_size": "sha256:a", "workload.path": "sha256:c"}),
        with_block_size(16, files={"kv.block_size": "sha256:b", "workload.path": "sha256:c"}),
        with_block_size(32, files={"kv.block_size": "sha256:b", "workload.path": "sha256:d"}),
    ])
    table = collect_runs(tmp_path)
    assert table["differing_keys"].to_list() == [[], [], ["files.workload.path"]]


def test_the_load_s_unit_is_in_the_name_of_its_column(tmp_path, files):
    files["summary"]["offered_rate"] = 2.5
    with open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
    table = collect_runs(tmp_path)
    assert table["offered_requests_per_s"].to_list() == [2.5]
    assert "offered_rate" not in table.columns


def test_seeds_may_differ(tmp_path, make_study):
    for seed in (0, 1):
        make_study([{**CONFIG, "seed": seed}], seed=seed)
    table = collect_runs(tmp_path / "demo")
    assert sorted(table["seed"]) == [0, 1]
    assert table["differs"].to_list() == [False, False]


def test_unfinished_runs_are_not_collected(tmp_path, files):
    with pytest.raises(RuntimeError), open_study(tmp_path, "demo", CONFIG) as study:
        study.save_run(CONFIG, 0, **files)
        raise RuntimeError
    table = collect_runs(tmp_path)
    assert len(table) == 0
    assert {"label", "differs", "run_hash"} <= set(table.columns)


def test_values_of_mixed_kinds_become_text(tmp_path, make_study):
    study = make_study([with_block_size(8), with_block_size("auto")])
    assert collect_runs(study.path)["kv.block_size"].to_list() == ["8", "auto"]


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        collect_runs(tmp_path / "nowhere")


def test_flatten():
    nested = {"a": {"b": 1, "c": {"d": [1, 2]}}, "e": None, "f": {}}
    assert flatten(nested) == {"a.b": 1, "a.c.d": "[1, 2]", "e": None}


def test_environment_tells_machine_versions_and_compilation():
    facts = describe_environment(
        device="cpu", compile_count=3, compile_s=2.0, cache_state="cold", fresh_process=True, note=1
    )
    assert facts["cores"] >= 1
    assert facts["versions"]["jax"]
    assert facts["source"].startswith("sha256:")
    expected = {"compile_count": 3, "cache_state": "cold", "fresh_process": True, "note": 1}
    assert expected.items() <= facts.items()
