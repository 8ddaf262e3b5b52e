"""What the breakdown times is what it says: the same products, the engine's kind of batch."""

import jax
import numpy as np
import pytest

from benchmarks import breakdown, levers
from cbjax.models import load_model
from cbjax.models.layers import product


@pytest.mark.parametrize("rows", [1, 8])
def test_every_form_of_a_product_is_that_product(rows: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, 48)).astype(np.float32)
    weight = random.standard_normal((2 * levers.CHUNK, 48)).astype(np.float32)
    for form in (product, levers._weight_first, levers._row_by_row):
        np.testing.assert_allclose(form(x, weight), x @ weight.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        levers._stored_in_out(x, weight.T), x @ weight.T, rtol=1e-4, atol=1e-4
    )


def test_no_token_shares_a_slot_and_a_prefill_fills_one_sequence() -> None:
    for tokens, sequences, decode in ((8, 8, True), (256, 32, False)):
        batch = breakdown.batch_of(tokens, sequences, decode)
        slots = set(zip(batch.write_blocks.tolist(), batch.write_offsets.tolist(), strict=True))
        assert len(slots) == tokens and min(slots)[0] >= 0
        assert int(batch.query_starts[-1]) == tokens
        assert int(batch.sampled.sum()) == int(batch.num_sequences) == (tokens if decode else 1)


def test_the_parts_compute_on_every_token() -> None:
    model = load_model("tiny")
    parts = breakdown.parts_of(model, "float32", tokens=2, sequences=2, decode=True)
    for name, call in parts.items():
        [*leaves] = jax.tree.leaves(call())
        assert leaves[0].shape[0] == 2 and np.isfinite(leaves[0]).all(), name


def test_floors_follow_what_must_be_read_or_multiplied() -> None:
    model = load_model("tiny")
    slow_reads = breakdown.floors(model, (1.0, 1e30), 8, 8, True)
    assert slow_reads["attention"] == pytest.approx(
        8 * breakdown.CONTEXT * 2 * 4 * model.config.num_layers * model.config.num_kv_heads
        * model.config.head_dim
    )
    few, many = (breakdown.floors(model, (1e30, 1.0), n, n, True)["matmul"] for n in (2, 8))
    assert many == pytest.approx(4 * few), "operations grow with rows, bytes do not"
    assert slow_reads["matmul"] == breakdown.floors(model, (1.0, 1e30), 32, 32, True)["matmul"]
