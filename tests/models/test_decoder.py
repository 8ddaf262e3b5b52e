"""The decoder: paged and dense forms agree, padding is inert, both dtypes work."""

import jax.numpy as jnp
import numpy as np
import pytest

from cbjax.models import dense_logits, load_model, weight_shapes
from cbjax.models.layout import LAYOUTS
from cbjax.models.tiny import TINY_SOURCES, tiny_config
from pallas_kernels.kv_write.api import new_kv_cache
from tests.models.paged import block_tables, make_batch, paged_logits, relative, step

TEXT = "The first token of a long answer waits for the whole prompt; the others only wait a turn."


@pytest.mark.parametrize(("source", "block_size"), [("tiny", 1), ("tiny", 4), ("tiny-qwen2", 16)])
def test_paged_chunks_agree_with_the_whole_sequence(source: str, block_size: int) -> None:
    model = load_model(source)
    ids = model.tokenizer.encode(TEXT)[:80]
    expected = np.asarray(dense_logits(model.weights, model.config, np.array(ids)))
    chunks = [7, 1, 1, 30, 16, 23, 1, 1]  # ends within, at and past block boundaries
    found = paged_logits(model.weights, model.config, ids, chunks, block_size)
    assert max(found) == 79
    for position, logits in found.items():
        assert relative(logits, expected[position]) < 1e-5


@pytest.mark.parametrize("source", ["tiny", "tiny-qwen2"])
def test_bfloat16_is_close_to_float32_and_its_two_forms_agree(source: str) -> None:
    wide, narrow = load_model(source, "float32"), load_model(source, "bfloat16")
    ids = wide.tokenizer.encode(TEXT)[:70]
    exact = np.asarray(dense_logits(wide.weights, wide.config, np.array(ids)))
    dense = np.asarray(dense_logits(narrow.weights, narrow.config, np.array(ids)))
    paged = paged_logits(narrow.weights, narrow.config, ids, [60, 1, 1, 8], 16, "bfloat16")
    assert 1e-4 < relative(dense[69], exact[69]) < 0.1
    for position, logits in paged.items():
        assert relative(logits, dense[position]) < 0.05


def test_one_row_of_bfloat16_gives_what_two_rows_give() -> None:
    model = load_model("tiny", "bfloat16")
    alone = dense_logits(model.weights, model.config, np.array([65]))
    pair = dense_logits(model.weights, model.config, np.array([65, 66]))
    assert relative(np.asarray(alone[0]), np.asarray(pair[0])) < 1e-5


def test_padding_tokens_and_empty_sequences_change_nothing() -> None:
    """FAULTS J4, J9."""
    model = load_model("tiny")
    ids = model.tokenizer.encode(TEXT)[:40]
    small = paged_logits(model.weights, model.config, ids, [40], 4, rung=(80, 2))
    large = paged_logits(model.weights, model.config, ids, [40], 4, rung=(256, 8))
    assert relative(large[39], small[39]) < 1e-5
    # A batch of nothing but padding leaves the cache as it was and yields finite numbers.
    cache = new_kv_cache(2, 20, 2, 4, 16, "float32")
    before = [np.asarray(c) for c in cache]
    logits, *after = step(
        model.weights, model.config, *cache, make_batch([], block_tables(2, 10), 4, 8, 4)
    )
    assert np.isfinite(np.asarray(logits)).all()
    assert all((np.asarray(a) == b).all() for a, b in zip(after, before, strict=True))


def test_every_position_matters() -> None:
    model = load_model("tiny")
    ids = np.array(model.tokenizer.encode(TEXT)[:48])
    logits = np.asarray(dense_logits(model.weights, model.config, ids))[-1]
    for changed in (0, 20, 46):
        other = ids.copy()
        other[changed] ^= 1
        assert (
            relative(np.asarray(dense_logits(model.weights, model.config, other))[-1], logits)
            > 1e-3
        )
    swapped = ids.copy()
    swapped[[3, 30]] = swapped[[30, 3]]
    assert (
        relative(np.asarray(dense_logits(model.weights, model.config, swapped))[-1], logits) > 1e-3
    )


def test_greedy_continuations_of_tiny_models_are_varied_and_depend_on_the_prompt() -> None:
    for source in TINY_SOURCES:
        model = load_model(source)
        texts = []
        for prompt in (TEXT[:24], "X" + TEXT[1:24]):
            ids = np.zeros(64, np.int32)
            ids[:24] = model.tokenizer.encode(prompt)
            for n in range(24, 64):
                ids[n] = jnp.argmax(dense_logits(model.weights, model.config, ids)[n - 1, :259])
            texts.append(ids[24:].tolist())
        assert texts[0] != texts[1]
        assert all(len(set(text)) > 15 for text in texts), source


def test_weight_shapes_refuse_other_dtypes_and_follow_the_config() -> None:
    with pytest.raises(ValueError, match="float16.*float32"):
        weight_shapes(tiny_config("tiny"), "float16")
    shapes = weight_shapes(tiny_config("tiny-qwen2"), "float32")
    assert "head" not in shapes and shapes["layers"]["qkv_bias"].shape == (2, 128)
    assert set(weight_shapes(tiny_config("tiny-qwen3"), "float32")["layers"]) >= {
        "q_norm",
        "k_norm",
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tokens", "dtype"), [(1, "float32"), (8, "float32"), (8, "bfloat16")])
def test_the_cache_is_updated_in_place(tokens: int, dtype: str, layout: str) -> None:
    """One token is a case of its own: its write compiles to another operation than a scatter."""
    model = load_model("tiny", dtype, layout)
    cache = new_kv_cache(2, 4000, 2, 4, 16, dtype)
    tables = block_tables(1, 4000)[:, :4]
    batch = make_batch([(0, 0, [1])], tables, 4, tokens, 1, num_blocks=4000)
    compiled = step.lower(model.weights, model.config, *cache, batch).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == 2 * cache[0].nbytes
    assert memory.temp_size_in_bytes < cache[0].nbytes / 4
