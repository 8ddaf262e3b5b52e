"""How long the attention of one layer takes by itself, in seconds that this process computes."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from cbjax.models.config import ModelConfig
from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes

DECODES = 32
LAYERS = 4
SAMPLES, SAMPLE_S = 5, 0.05

Arguments = Mapping[str, Any]


def attention_seconds(
    config: ModelConfig, *, block_size: int, dtype: str = "float32",
    implementation: str | None = None,
) -> float:
    """Time the attention of 32 decodes, their contexts log-normal (median 180, at most 1024).

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
    attend = partial(ragged_paged_attention, scale=scale, implementation=implementation)
    layers = through_layers(lambda arguments, layer: attend(**arguments, layer=layer))
    return least_seconds(lambda: layers(given))[0] / LAYERS


def through_layers(attend: Callable[[Arguments, jax.Array], jax.Array]) -> Callable:
    """A compiled program of attention in 4 layers, one after another as in a model.

    So temporaries are allocated once, and the KV of the next layer is not in the cache of the core
    yet.

    Args:
        attend: the kernel's arguments and the layer -> what is mixed.

    Returns:
        A function of the arguments.
    """

    @jax.jit
    def layers(arguments: Arguments) -> jax.Array:
        def one(queries: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
            # The next layer waits for this one.
            return queries + 1e-3 * attend({**arguments, "q": queries}, layer), None

        return jax.lax.scan(one, arguments["q"], jnp.arange(LAYERS))[0]

    return layers


def least_seconds(call: Callable[[], Any], during_s: float = 0.0) -> tuple[float, float]:
    """Seconds of a call: computed by all cores, and elapsed; the lowest of several samples each.

    Args:
        call: run once before, to be compiled.
        during_s: take samples for so long, and 5 at least. Each is long enough for the clock's
            ticks.
    """
    jax.block_until_ready(call())
    samples: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(samples) < SAMPLES or time.perf_counter() - started < during_s:
        computed, elapsed, calls = time.process_time(), time.perf_counter(), 0
        while calls == 0 or time.process_time() - computed < SAMPLE_S:
            jax.block_until_ready(call())
            calls += 1
        samples.append((
            (time.process_time() - computed) / calls, (time.perf_counter() - elapsed) / calls
        ))
    return min(one for one, _ in samples), min(one for _, one in samples)
