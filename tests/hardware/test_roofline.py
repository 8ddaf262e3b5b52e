"""The floor of an iteration against sums done by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cbjax import hardware
from cbjax.hardware import models, roofline

# 2 layers, 4 query and 2 KV heads of 8, width 16, feed-forward 32, vocabulary 64.
TOY = hardware.ModelShape("toy", 64, 16, 2, 4, 2, 8, 32, 128)
LAYER = 16 * (2 * 32 + 2 * 16) + 3 * 16 * 32
CHIP = hardware.Accelerator("chip", memory=1e6, bandwidth=1e6, rates={"bfloat16": 1e8})


def test_costs_of_a_toy_by_hand():
    costs = roofline.step_costs(TOY)
    norms = 2 * 2 * 16 + 16
    assert costs.memory == 2 * (2 * LAYER + 2 * 64 * 16 + norms)
    assert costs.weights == 2 * (2 * LAYER + 64 * 16 + norms)  # the embedding is looked up
    assert costs.kv_token == 2 * 2 * 2 * 8 * 2  # K and V, layers, heads, size, bytes
    assert costs.token == 2 * 2 * LAYER and costs.logit == 2 * 64 * 16
    assert costs.pair == 2 * 2 * 4 * 8 * 2  # q.k and p.v, two operations each, layers


def test_attention_counts_every_pair_of_a_token_and_what_it_sees():
    def counted(tokens, context):
        return sum(context + place + 1 for place in range(tokens))

    for chunk, context in ((1, 0), (5, 0), (5, 7), (16, 32)):
        work = roofline.iteration(chunk=chunk, chunk_context=context)
        assert work.pairs == counted(chunk, context)
    work = roofline.iteration(batch=3, context=9, chunk=4, chunk_context=2)
    assert work.pairs == 3 * counted(1, 9) + counted(4, 2)
    assert (work.tokens, work.logits, work.read) == (7, 4, 3 * 9 + 2)


def test_kv_is_read_in_whole_blocks():
    for block_size, read in ((1, 33 * 3), (16, 48 * 3), (64, 64 * 3)):
        assert roofline.iteration(batch=3, context=33, block_size=block_size).read == read
    assert roofline.iteration(batch=3, context=0, block_size=16).read == 0


def test_the_floor_is_the_slower_of_bytes_and_operations():
    costs = roofline.step_costs(TOY)
    decode = roofline.floor(CHIP, costs, roofline.iteration(batch=1, context=10))
    assert decode.bytes == costs.weights + 11 * costs.kv_token
    assert decode.operations == costs.token + costs.logit + 11 * costs.pair
    assert decode.seconds == decode.bytes / 1e6 > decode.compute_s
    assert decode.intensity == decode.operations / decode.bytes
    prefill = roofline.floor(CHIP, costs, roofline.iteration(chunk=1000))
    assert prefill.seconds == prefill.operations / 1e8 > prefill.memory_s


def test_llama_8b_on_h100_by_hand():
    """16.06 GB of weights less the embedding, 128 KiB of KV a token, over 3.35 TB/s."""
    chip, costs = hardware.load("h100"), roofline.step_costs(models.load("llama3.1-8b"))
    assert costs.kv_token == 131_072
    assert costs.memory == 2 * 8_030_261_248
    one = roofline.floor(chip, costs, roofline.iteration(batch=1)).seconds
    assert one == pytest.approx((16.06e9 - 1.05e9) / 3.35e12, rel=1e-3)
    blocks = roofline.kv_blocks(chip, costs, 16)
    assert blocks == int((0.9 * 80 * 2**30 - 16_060_522_496) // (16 * 131_072)) == 29205


def test_devices_share_weights_and_kv_heads_until_there_is_one_each():
    model = models.load("llama3.1-8b")
    alone = roofline.step_costs(model)
    for devices, kv_share in ((2, 2), (8, 8), (16, 8)):
        each = roofline.step_costs(model, devices=devices)
        assert each.weights * devices == alone.weights and each.pair * devices == alone.pair
        assert each.kv_token * kv_share == alone.kv_token
    small = roofline.step_costs(model, dtype="float8")
    assert small.weights * 2 == alone.weights
    mixed = roofline.step_costs(model, kv_dtype="float8")
    assert mixed.weights == alone.weights and mixed.kv_token == small.kv_token


@pytest.mark.parametrize("kv_dtype", ["int8", "float8", "float8_e4m3fn"])
def test_kv_of_one_byte_has_scales(kv_dtype):
    """32 layers, keys and values, 8 heads: 128 bytes and a float32 each, 67,584 a token."""
    costs = roofline.step_costs(models.load("llama3.1-8b"), kv_dtype=kv_dtype)
    assert costs.kv_token == 32 * 2 * 8 * (128 + 4) == 67_584
    # One head of two is held: 2 layers of keys and values of 8 numbers.
    assert roofline.step_costs(TOY, kv_dtype=kv_dtype, devices=2).kv_token == 2 * 2 * 1 * (8 + 4)
    work = roofline.iteration(batch=2, context=100, block_size=16)
    read = roofline.floor(hardware.load("h100"), costs, work).bytes - costs.weights
    assert read == 67_584 * (2 * 112 + 2)


def test_the_scales_are_those_of_the_cache():
    """One block of 16 positions, both halves, as `new_kv_cache` makes it."""
    from pallas_kernels.kv_write import new_kv_cache

    cache = new_kv_cache(2, 1, 2, 16, 8, "int8")
    held = sum(part.nbytes for half in cache for part in half)
    assert held == 16 * roofline.step_costs(TOY, kv_dtype="int8").kv_token


def test_numbers_and_arrays_of_numpy_and_jax_price_alike():
    chip, costs = hardware.load("v6e"), roofline.step_costs(models.load("llama3.1-8b"))
    batch, context = np.array([1, 8, 64]), np.array([100, 1000, 5000])

    def seconds(batch, context):
        least = roofline.floor(
            chip, costs, roofline.iteration(batch=batch, context=context, block_size=16)
        )
        return jnp.maximum(least.memory_s, least.compute_s)

    alone = [float(seconds(int(b), int(c))) for b, c in zip(batch, context, strict=True)]
    np.testing.assert_allclose(jax.jit(seconds)(batch, context), alone, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: roofline.step_costs(TOY, devices=3), "devices = 3: give a divisor of the 4"),
        (lambda: roofline.step_costs(TOY, dtype="half"), "dtype = 'half': use one of float32"),
        (lambda: roofline.step_costs(TOY, kv_dtype="x"), "kv_dtype = 'x': use one of"),
        (lambda: roofline.kv_blocks(CHIP, roofline.step_costs(TOY), 0), "block_size = 0"),
        (lambda: roofline.kv_blocks(CHIP, roofline.step_costs(TOY), 16, activations=1e6),
         "hardware = 'chip': .*use more devices"),
        (lambda: roofline.kv_blocks(CHIP, roofline.step_costs(TOY), 16, memory_fraction=2),
         "memory_fraction = 2"),
    ],
)
def test_impossible_values_name_field_value_and_remedy(make, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        make()
