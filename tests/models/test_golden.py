"""Agreement with Hugging Face transformers, from files made once (see golden/make_golden.py)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cbjax.models import dense_logits, families, load_model
from cbjax.models.convert import convert
from cbjax.models.gguf_file import open_gguf
from cbjax.models.hf_dir import hf_config, hf_tensors
from cbjax.models.layout import LAYOUTS, lay_out
from cbjax.models.load import gguf_config, gguf_tensors
from pallas_kernels.kv_write.api import new_kv_cache
from tests.models.gguf_maker import write_gguf
from tests.models.paged import block_tables, make_batch, paged_logits, relative, step

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.npz"))
TOLERANCE = 2e-4  # of the greatest logit, float32 on both sides


def read(name: str):
    config = hf_config(GOLDEN / name)
    return config, convert(config, hf_tensors(GOLDEN / name), "float32")


def test_the_golden_files_cover_every_family_and_dtype() -> None:
    assert len(MODELS) >= 8
    kinds = {json.loads((GOLDEN / m / "config.json").read_text())["model_type"] for m in MODELS}
    assert kinds == set(families.names)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, layout: str) -> None:
    """FAULTS K3: bfloat16 and float16 tensors, and shards, load as what they are."""
    config, weights = read(name)
    weights = lay_out(weights, layout)
    golden = np.load(GOLDEN / name / "expected.npz")
    found = np.asarray(dense_logits(weights, config, golden["token_ids"]))[golden["positions"]]
    assert relative(found, golden["logits"]) < TOLERANCE
    late = golden["positions"] >= 64
    assert late.sum() == 3 and relative(found[late], golden["logits"][late]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "block_size"),
    [
        ("llama31", 4),
        ("qwen2", 16),
        ("qwen3", 4),
        pytest.param("mistral", 16, marks=pytest.mark.slow),
        pytest.param("llama-untied-sharded", 16, marks=pytest.mark.slow),
    ],
)
def test_paged_logits_equal_those_of_transformers(name: str, block_size: int) -> None:
    config, weights = read(name)
    golden = np.load(GOLDEN / name / "expected.npz")
    expected = dict(zip(golden["positions"].tolist(), golden["logits"], strict=True))
    chunks = [1, 40, 23, 1, 15, 15, 1]
    found = paged_logits(weights, config, golden["token_ids"].tolist(), chunks, block_size)
    shared = set(found) & set(expected)
    assert shared == {0, 40, 63, 64, 79, 95}
    for position in shared:
        assert relative(found[position], expected[position]) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "llama31", "qwen2", "qwen3"])
def test_gguf_gives_what_the_folder_gives_at_late_positions(name: str, tmp_path: Path) -> None:
    """FAULTS K1: q and k of Llama files are ordered for another rotary layout."""
    write_gguf(GOLDEN / name, tmp_path / "model.gguf")
    file = open_gguf(tmp_path / "model.gguf")
    config = gguf_config(file)
    golden = np.load(GOLDEN / name / "expected.npz")
    weights = convert(config, gguf_tensors(file), "float32")
    found = np.asarray(dense_logits(weights, config, golden["token_ids"]))[golden["positions"]]
    assert relative(found, golden["logits"]) < TOLERANCE


def test_a_gguf_llama_read_without_reordering_is_caught(tmp_path: Path) -> None:
    """The test above has teeth: left as they lie, q and k give other logits."""
    write_gguf(GOLDEN / "llama", tmp_path / "model.gguf")
    file = open_gguf(tmp_path / "model.gguf")
    golden = np.load(GOLDEN / "llama" / "expected.npz")
    config = gguf_config(file)
    assert config.family == "llama"
    as_is = replace(config, family="mistral")  # the same names, and no other order
    weights = convert(as_is, gguf_tensors(file), "float32")
    found = np.asarray(dense_logits(weights, config, golden["token_ids"]))[golden["positions"]]
    assert relative(found[4:], golden["logits"][4:]) > 0.01


@pytest.mark.slow
@pytest.mark.real_model
def test_smollm2_continues_eight_prompts_as_transformers_does() -> None:
    """32 greedy tokens each, all eight prompts in one paged batch, block size 16."""
    model = load_model("smollm2")
    cases = json.loads((GOLDEN / "smollm2.json").read_text(encoding="utf-8"))["cases"]
    assert len(cases) == 8
    tables = block_tables(8, 8)
    cache = new_kv_cache(30, tables.size, 3, 16, 64, "float32")
    fed = [model.tokenizer.encode(case["prompt"]) for case in cases]
    assert fed == [case["prompt_ids"] for case in cases]
    made: list[list[int]] = [[] for _ in cases]
    lengths = [0] * len(cases)
    for _ in range(32):
        chunks = [(s, lengths[s], ids) for s, ids in enumerate(fed)]
        tokens = 8 if all(len(ids) == 1 for ids in fed) else 256
        logits, *cache = step(
            model.weights, model.config, *cache, make_batch(chunks, tables, 16, tokens, 8)
        )
        best = np.asarray(logits).argmax(axis=-1).tolist()
        lengths = [length + len(ids) for length, ids in zip(lengths, fed, strict=True)]
        fed = [[token] for token in best]
        for tokens_made, token in zip(made, best, strict=True):
            tokens_made.append(token)
    assert made == [case["continuation_ids"] for case in cases]
    texts = [model.tokenizer.decode(ids) for ids in made]
    assert texts == [case["continuation"] for case in cases]
