"""The decoder that every supported family is: a configuration turns one module into all of them.

Weights are an argument, a nested dictionary of arrays, so that one compiled program serves any
weights of a configuration. Layers are a scan, so compile time hardly grows with depth, over stacks
`[L, ...]` or, where that is quicker (see layout.py), over matrices apart. The KV cache travels in
the scan's carry, where it is updated in place.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

from cbjax.core.batch import IterationBatch
from cbjax.models.attention import causal_attention, paged_attention
from cbjax.models.config import ModelConfig
from cbjax.models.layers import Layer, product, rms_norm, rotation
from cbjax.models.layout import OneOf
from pallas_kernels.quantised import Cache, Quantised

Weights = dict[str, Any]


class Decoder(nnx.Module):
    """Embedding, L stacked layers, final norm and head of one configuration."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike = jnp.float32):
        vocabulary = (config.vocab_size, config.hidden_size)
        self.embedding = nnx.Param(jnp.zeros(vocabulary, dtype))
        stack = nnx.vmap(lambda _: Layer(config, dtype), out_axes=0)
        self.layers = stack(jnp.arange(config.num_layers))
        self.final_norm = nnx.Param(jnp.zeros(config.hidden_size, jnp.float32))
        if not config.tied:
            self.head = nnx.Param(jnp.zeros(vocabulary, dtype))

    def embed(self, token_ids: Int[Array, "T"]) -> Float[Array, "T E"]:
        """The residual stream before the first layer."""
        return self.embedding[...][token_ids].astype(jnp.float32)

    def logits(self, x: Float[Array, "S E"]) -> Float[Array, "S V"]:
        """Scores of the next token from the stream after the last layer."""
        x = rms_norm(x, self.final_norm[...], self.layers.config.norm_eps)
        head = self.embedding if self.layers.config.tied else self.head
        return product(x, head[...])


def forward(
    weights: Weights,
    config: ModelConfig,
    keys: Shaped[Array, "L N K B D"] | Quantised,
    values: Shaped[Array, "L N K B D"] | Quantised,
    batch: IterationBatch,
    *,
    attention: str | None = None,
) -> tuple[Float[Array, "S V"], Cache, Cache]:
    """One iteration of the model: write the batch's KV, and score each sequence's next token.

    Args:
        weights: as `weight_shapes(config, ...)` has them, in either layout.
        config: static.
        keys, values: the KV cache from `new_kv_cache`; donate it to update it in place.
        batch: T tokens of up to S sequences.
        attention: static; name of an attention back end, or None for the best here.

    Returns:
        Logits at `batch.sample_tokens` (float32; meaningless where `batch.sampled` is false), and
        the cache.
    """

    def mixer(layer: Array, cache: tuple[Cache, Cache]) -> Callable:
        def mix(q: Array, k: Array, v: Array) -> tuple[Array, object]:
            mixed, *written = paged_attention(q, k, v, *cache, layer, batch, attention)
            return mixed, tuple(written)

        return mix

    x, (keys, values) = _run(
        weights, config, batch.token_ids, batch.positions, mixer, (keys, values)
    )
    model = nnx.merge(_graph(config), weights)
    return model.logits(x[batch.sample_tokens]), keys, values


@functools.partial(jax.jit, static_argnums=1)
def dense_logits(
    weights: Weights, config: ModelConfig, token_ids: Int[Array, "T"]
) -> Float[Array, "T V"]:
    """Logits at every position of one sequence, without paging: the definition to check by.

    Args:
        weights: as `weight_shapes(config, ...)` has them, in either layout.
        config: static.
        token_ids: `[T]` the whole sequence from position 0.

    Returns:
        `[T, V]` float32; row t scores the token after position t.
    """

    def mixer(_layer: Array, carried: tuple) -> Callable:
        return lambda q, k, v: (causal_attention(q, k, v), carried)

    x, _ = _run(weights, config, token_ids, jnp.arange(token_ids.shape[0]), mixer, ())
    return nnx.merge(_graph(config), weights).logits(x)


@functools.cache
def weight_shapes(config: ModelConfig, dtype: str) -> Weights:
    """Shape and dtype of every weight of a model whose matrices are `dtype`.

    Args:
        config: the model.
        dtype: "float32" or "bfloat16"; norms and biases are float32 in any case.

    Returns:
        A nested dictionary of `jax.ShapeDtypeStruct`, layers stacked.

    Raises:
        ValueError: another dtype.
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype: {dtype!r} is not supported; use 'float32' or 'bfloat16'")
    model = nnx.eval_shape(lambda: Decoder(config, jnp.dtype(dtype)))
    return nnx.to_pure_dict(nnx.split(model)[1])


def _run(
    weights: Weights,
    config: ModelConfig,
    token_ids: Array,
    positions: Array,
    mixer: Callable,
    carried: Any,
) -> tuple[Array, Any]:
    """The stream `[T, E]` after all layers, and what the mixers carried through them."""
    turn = rotation(config, positions)
    apart = {name: w for name, w in weights["layers"].items() if isinstance(w, tuple)}
    stacked = {name: w for name, w in weights["layers"].items() if name not in apart}

    def body(state: tuple, xs: tuple) -> tuple[tuple, None]:
        x, carried = state
        layer, slices = xs
        own = slices | {name: OneOf(matrices, layer) for name, matrices in apart.items()}
        return nnx.merge(_layer_graph(config), own)(x, turn, mixer(layer, carried)), None

    x = nnx.merge(_graph(config), weights).embed(token_ids)
    layers = (jnp.arange(config.num_layers), stacked)
    return jax.lax.scan(body, (x, carried), layers)[0]


@functools.cache
def _graph(config: ModelConfig) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: Decoder(config)))[0]


@functools.cache
def _layer_graph(config: ModelConfig) -> nnx.GraphDef:
    return nnx.split(nnx.eval_shape(lambda: Layer(config, jnp.float32)))[0]
