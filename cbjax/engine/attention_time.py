"""How long the attention of one layer takes by itself, in seconds that this process computes."""

import time
from functools import partial

import jax
import jax.numpy as jnp

from cbjax.models.config import ModelConfig
from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes

DECODES = 32
LAYERS = 4
SAMPLES, SAMPLE_S = 5, 0.05


def attention_seconds(
    config: ModelConfig, *, block_size: int, dtype: str = "float32",
    implementation: str | None = None,
) -> float:
    """Time the attention of 32 decodes, their contexts log-normal (median 180, at most 1024).

    Several layers are computed one after another, as in a model, so that the KV of the next one is
    not in the cache of the core yet. The lowest of several samples counts; each is long enough for
    the clock's ticks.

    Args:
        config: sizes of the model, of which the heads count.
        block_size: tokens of a KV block.
        dtype: of the KV cache.
        implementation: back end of the kernel; None: the one for this platform.

    Returns:
        Seconds of a layer, those of all cores added up.
    """
    heads = shapes.Heads(config.num_heads, config.num_kv_heads, config.head_dim)
    given = shapes.arguments(
        heads, shapes.decodes(DECODES), block_size=block_size, num_layers=LAYERS, dtype=dtype
    )
    scale = given.pop("scale")  # part of the program
    given = jax.tree.map(jnp.asarray, given)

    @jax.jit
    def layers(given):
        attend = partial(ragged_paged_attention, scale=scale, implementation=implementation)

        def one(queries, layer):
            # The next layer waits for this one.
            return queries + 1e-3 * attend(**given | {"q": queries, "layer": layer}), None

        return jax.lax.scan(one, given["q"], jnp.arange(LAYERS))[0]

    def call():
        jax.block_until_ready(layers(given))

    call()
    return min(_sample(call) for _ in range(SAMPLES)) / LAYERS


def _sample(call) -> float:
    """Seconds computed per call, over at least `SAMPLE_S` of them."""
    started, calls = time.process_time(), 0
    while calls == 0 or time.process_time() - started < SAMPLE_S:
        call()
        calls += 1
    return (time.process_time() - started) / calls
