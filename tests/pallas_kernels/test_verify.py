"""The verification itself: it can pass, it can fail, and it says what it did not run."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pallas_kernels.ragged_paged_attention import shapes
from pallas_kernels.verify import baselines, cases, device, ledger, semantics
from pallas_kernels.verify.__main__ import compile_layer
from pallas_kernels.verify.targets import TARGETS


def test_a_missing_chip_is_said_and_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert device.run() == ("skipped", "no GPU or TPU here: not run")
    assert not list(tmp_path.iterdir())


def test_missing_compilers_are_said(monkeypatch):
    monkeypatch.setattr(type(TARGETS["v6e"]), "missing", lambda self: f"no {self.platform}")
    assert compile_layer(["v6e", "h100"]) == (
        "skipped", "v6e skipped (no tpu), h100 skipped (no cuda)"
    )
    assert ledger.run(["v6e"], write=False) == ("skipped", "v6e skipped (no tpu)")


def test_missing_tests_are_said(monkeypatch, tmp_path):
    monkeypatch.setattr(semantics, "TESTS", tmp_path / "nowhere")
    assert semantics.run(quick=True)[0] == "skipped"


def test_every_model_and_kernel_is_among_the_cases():
    production = cases.production()
    assert {case.kernel for case in production} == {"attention", "kv_write", "block_copy"}
    names = {case.name for case in production}
    assert {"smollm2", "qwen3-0.6b", "gemma-7b"} <= names
    for model in ("llama3.1-8b", "llama3.1-70b"):
        assert {f"{model}/{ways}" for ways in (1, 4, 8)} <= names


def test_one_of_each_kind_leaves_out_no_kernel_type_or_option():
    brief = cases.one_of_each_kind()
    assert len(brief) < len(cases.production()) / 2
    for wanted in ("kernel", "dtype", "query_dtype"):
        every = {getattr(case, wanted) for case in cases.production()}
        assert {getattr(case, wanted) for case in brief} == every
    assert any("window" in case.options for case in brief)


def test_a_brief_target_compiles_fewer_cases(monkeypatch):
    ran = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, env: ran.append(command[3:]) or type("", (), {
            "returncode": int(command[3] == "v5p")
        })
    )
    monkeypatch.setattr(type(TARGETS["v6e"]), "missing", lambda self: None)
    assert compile_layer(["v6e", "v5p", "v5e"], ["v5e", "v5p"]) == (
        "failed", "v6e ok, v5p failed, v5e ok"
    )
    assert sorted(ran) == [["v5e", "brief"], ["v5p", "brief"], ["v6e"]]


def test_the_ledger_is_labelled_and_whole():
    kept = json.loads(ledger.FILE.read_text())
    assert kept["label"] == ledger.LABEL
    assert set(kept["targets"]) == set(TARGETS)
    for name, target in kept["targets"].items():
        for model in ledger.NAMES:
            row = target["rows"][f"{model}, blocks of 16"]
            spills = [row[key] for key in row if key.endswith("spill_bytes")]
            assert not any(spills) and all(n >= 0 for n in row.values()), (name, model)
        for label in ("llama3.1-8b/1 2k, blocks of 1", "llama3.1-8b/1, blocks of 256"):
            row = target["rows"][label]
            parts = ("prefill_shared_memory", "decode_shared_memory")
            for part in parts if TARGETS[name].platform == "cuda" else ("vmem", "smem"):
                assert row[f"{part}_bytes"] > 0


def test_a_changed_figure_is_told():
    kept = json.loads(ledger.FILE.read_text())["targets"]["h100"]
    fresh = json.loads(json.dumps(kept))
    assert ledger._differences(kept, fresh) == []
    fresh["rows"]["smollm2, blocks of 16"]["decode_registers"] += 1
    (line,) = ledger._differences(kept, fresh)
    assert "smollm2, blocks of 16" in line and "--write" in line


def test_a_lost_block_is_a_difference_that_counts():
    """16 positions of 4096: 0.003 of numbers that are 0.03, hidden in an absolute bound."""
    values = np.random.default_rng(0).standard_normal((4096, 1, 1, 128))
    whole, less = values.mean(axis=0), values[16:].mean(axis=0)
    assert np.abs(whole - less).max() < device.Sizes().tolerance / 4
    assert baselines.difference(less, whole) > device.Sizes().tolerance
    assert baselines.difference(whole, whole) == 0


@pytest.mark.slow
@pytest.mark.parametrize("back_end", ["xla", "tpu", "triton"])
def test_the_device_layer_runs_to_the_end(back_end, monkeypatch):
    """Rehearsed at toy size; the figures of an interpreter mean nothing and are not looked at."""
    monkeypatch.setitem(shapes.HEADS, "toy", shapes.Heads(4, 2, 16))
    toy = device.Sizes(
        "toy", 3, 40, 33, (8,), 1 << 10, 32, 1, 1, ragged=((1, 1), (0, 0), (40, 1), (30, 9))
    )
    rows = device.measure(toy, back_end)
    assert device.wrong_rows(rows, toy.tolerance) == 0
    exact, rows = rows[:9], rows[9:]
    assert {row["what"].split(",")[0] for row in exact} == {"ragged batch", "write", "block copy"}
    assert [row["what"] for row in rows] == ["copy", "matrix product", "decode", "prefill"]
    assert device.wrong_rows(rows, 0.0 if back_end == "xla" else 1e-9) == 2 * (back_end != "xla")
    assert device.wrong_rows([{"error": float("nan")}], toy.tolerance) == 1
    for row in rows[2:]:
        decodes = row["what"] == "decode"
        assert row["contiguous_xla_error"] < toy.tolerance and row["contiguous_xla_seconds"] > 0
        assert row["contiguous_cudnn_seconds"].startswith("absent: ")  # no GPU here
        if back_end == "tpu" or back_end == "triton" and decodes:
            assert row["jax_paged_error"] < toy.tolerance and row["jax_paged_seconds"] > 0
        elif back_end == "triton":
            assert row["jax_paged_seconds"].endswith("takes decodes only")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v6e", "h100"])
def test_real_compilers(name):
    """All production shapes and the mistakes that must be refused, for one chip."""
    if TARGETS[name].missing():
        pytest.skip(TARGETS[name].missing())
    command = [sys.executable, "-m", "pallas_kernels.verify.compile", name]
    done = subprocess.run(
        command, env=TARGETS[name].environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count("refused, as it must be") >= 3
