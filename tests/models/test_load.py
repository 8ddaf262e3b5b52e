"""Loading: complete checkpoints only, converted once, restored whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from safetensors.numpy import load_file, save_file

from cbjax.models import dense_logits, load_model, weight_shapes
from cbjax.models.convert import convert
from cbjax.models.gguf_file import open_gguf
from cbjax.models.hf_dir import hf_config, hf_tensors
from cbjax.models.load import gguf_config, gguf_tensors
from cbjax.models.tiny import tiny_config, tiny_tokenizer
from tests.models.gguf_maker import TOKENS, write_gguf

pytestmark = pytest.mark.usefixtures("own_cache")
GOLDEN = Path(__file__).parent / "golden"
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.merges": ["a b"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder to spoil; whole, with a tokenizer."""
    copy = tmp_path / "model"
    shutil.copytree(GOLDEN / "llama", copy)
    backend = tiny_tokenizer(tiny_config("tiny")).backend
    backend.save(str(copy / "tokenizer.json"))
    return copy


def spoil(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def set_config(folder: Path, **changes) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))


def same(a, b) -> bool:
    return all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def entries(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "weights").glob("*"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_second_load_restores_what_the_first_converted(
    folder: Path, own_cache: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_model(str(folder), dtype, "stacked")
    assert len(entries(own_cache)) == 1
    monkeypatch.setattr("cbjax.models.load.convert", lambda *_: pytest.fail("converted again"))
    second = load_model(str(folder), dtype, "stacked")
    assert same(first.weights, second.weights) and first.config == second.config
    assert first.source_digest == second.source_digest
    kinds = jax.tree.map(lambda a: (a.shape, a.dtype), second.weights)
    assert kinds == jax.tree.map(lambda s: (s.shape, s.dtype), weight_shapes(first.config, dtype))


def test_another_dtype_or_content_is_another_entry(folder: Path, own_cache: Path) -> None:
    one = load_model(str(folder))
    load_model(str(folder), "bfloat16")
    assert len(entries(own_cache)) == 2
    spoil(folder, lambda tensors: tensors["model.norm.weight"].__setitem__(0, 9.0))
    other = load_model(str(folder))
    assert len(entries(own_cache)) == 3 and other.source_digest != one.source_digest
    assert float(other.weights["final_norm"][0]) == 9.0


def test_a_conversion_that_fails_while_being_kept_leaves_nothing(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = ocp.Checkpointer.save

    def interrupted(self, path, *args, **kwargs):
        save(self, path, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(ocp.Checkpointer, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_model(str(folder))
    assert entries(own_cache) == []


def test_a_killed_conversion_leaves_nothing_that_is_used(folder: Path, own_cache: Path) -> None:
    program = f"""
        import os, orbax.checkpoint as ocp
        from cbjax.models import load_model
        ocp.Checkpointer.save = lambda self, path, **_: (path.mkdir(), os._exit(9))
        load_model({str(folder)!r})
    """
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 9, done.stderr
    assert len(entries(own_cache)) == 1 and entries(own_cache)[0].startswith("unfinished-")
    whole = convert(hf_config(folder), hf_tensors(folder), "float32")
    assert same(load_model(str(folder), layout="stacked").weights, whole)
    # A leftover is removed once it is surely abandoned.
    left = own_cache / "weights" / entries(own_cache)[-1]
    os.utime(left, (0, 0))
    load_model(str(folder), "bfloat16")
    assert not any(name.startswith("unfinished-") for name in entries(own_cache))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # within Orbax
def test_a_damaged_entry_is_made_anew(folder: Path, own_cache: Path) -> None:
    first = load_model(str(folder))
    shutil.rmtree(own_cache / "weights" / entries(own_cache)[0] / "ocdbt.process_0")
    with pytest.warns(UserWarning, match="made anew"):
        again = load_model(str(folder))
    assert same(first.weights, again.weights) and len(entries(own_cache)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
            "layers.1.mlp.up_proj.weight missing",
        ),
        (
            lambda t: t.update({"model.layers.0.extra": np.ones(3)[:1].astype("f4")}),
            "0.extra not part",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.ones(31, "f4")}),
            r"model.norm.weight has shape \[31\].*says \[32\]",
        ),
        (
            lambda t: t.update({"lm_head.weight": np.ones((96, 32), "f4")}),
            "lm_head.weight differs.*tie_word_embeddings: false",
        ),
        (
            lambda t: t.update({"model.norm.weight": np.ones(32, "f8")}),
            "model.norm.weight has dtype F64.*BF16",
        ),
    ],
)
def test_spoiled_checkpoints_are_refused_naming_the_tensor(
    folder: Path, own_cache: Path, change, message: str
) -> None:
    spoil(folder, change)
    with pytest.raises(ValueError, match=message):
        load_model(str(folder))
    assert not (own_cache / "weights").exists()


def test_a_missing_head_that_is_not_tied_is_refused(folder: Path) -> None:
    set_config(folder, tie_word_embeddings=False)
    with pytest.raises(ValueError, match="lm_head.weight is missing.*not tied"):
        load_model(str(folder))


def test_a_tied_head_that_is_stored_all_the_same_is_accepted(folder: Path) -> None:
    spoil(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert "head" not in load_model(str(folder)).weights


def test_more_layers_in_the_file_than_in_the_config_are_refused(folder: Path) -> None:
    set_config(folder, num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"model.layers.1.*more not part.*1 layers"):
        load_model(str(folder))


def test_incomplete_folders_are_refused_naming_the_file(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="config.json is missing"):
        load_model(str(tmp_path / "empty"))
    (folder / "model.safetensors").rename(folder / "model.bin")
    with pytest.raises(ValueError, match="no model.safetensors"):
        load_model(str(folder))
    sharded = tmp_path / "sharded"
    shutil.copytree(GOLDEN / "llama-untied-sharded", sharded)
    shutil.copy(folder / "tokenizer.json", sharded)
    assert load_model(str(sharded)).config.tied is False
    (sharded / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match="model-00002-of-00003.safetensors missing"):
        load_model(str(sharded))
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json: not valid JSON"):
        load_model(str(folder))


def test_a_cut_short_safetensors_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_model(str(folder))


def test_a_whole_gguf_loads_with_its_tokenizer(tmp_path: Path) -> None:
    write_gguf(GOLDEN / "llama", tmp_path / "m.gguf", metadata=TOKENIZER)
    model = load_model(str(tmp_path / "m.gguf"), layout="stacked")
    assert model.config.eos_ids == model.tokenizer.eos_ids == (2,)
    assert model.tokenizer.vocab_size == 96 and model.tokenizer.encode("abba") == [5, 4, 3]
    plain = convert(hf_config(GOLDEN / "llama"), hf_tensors(GOLDEN / "llama"), "float32")
    assert same(model.weights, plain)


@pytest.mark.parametrize(("coding", "error"), [("F16", 5e-3), ("BF16", 3e-2), ("Q8_0", 0.1)])
def test_coded_gguf_tensors_load_as_what_they_stand_for(
    tmp_path: Path, coding: str, error: float
) -> None:
    write_gguf(GOLDEN / "llama", tmp_path / "m.gguf", coding)
    file = open_gguf(tmp_path / "m.gguf")
    assert {t.kind.name for t in file.tensors.values()} == {"F32", coding}
    weights = convert(gguf_config(file), gguf_tensors(file), "float32")
    golden = np.load(GOLDEN / "llama" / "expected.npz")
    found = dense_logits(weights, gguf_config(file), golden["token_ids"])
    found = np.asarray(found)[golden["positions"]]
    assert np.abs(found - golden["logits"]).max() < error * np.abs(golden["logits"]).max()


def test_spoiled_gguf_checkpoints_are_refused_naming_the_tensor(tmp_path: Path) -> None:
    config = write_gguf(GOLDEN / "llama", tmp_path / "m.gguf", metadata=TOKENIZER)
    file = open_gguf(tmp_path / "m.gguf")
    source = gguf_tensors(file)
    without = {k: v for k, v in source.shapes.items() if k != "blk.1.attn_k.weight"}
    with pytest.raises(ValueError, match="blk.1.attn_k.weight missing"):
        convert(config, type(source)("x", "gguf", without, source.read), "float32")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:-9000])
    with pytest.raises(ValueError, match="cut short"):
        load_model(str(tmp_path / "cut.gguf"))
    (tmp_path / "head.gguf").write_bytes(data[:200])
    with pytest.raises(ValueError, match="damaged or cut short"):
        load_model(str(tmp_path / "head.gguf"))
    (tmp_path / "other.gguf").write_bytes(b"PK" + data)
    with pytest.raises(ValueError, match="not a GGUF file"):
        load_model(str(tmp_path / "other.gguf"))


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    for source in (str(folder), "tiny"):
        with pytest.raises(ValueError, match="dtype: 'float16'"):
            load_model(source, "float16")
