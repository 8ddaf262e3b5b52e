"""The pieces of the decoder: norm, rotary positions, products with weights, one layer.

Numbers between products are float32: the residual stream, norms, rotations and sums. Matrices may
be float32 or bfloat16; their products take bfloat16 in and float32 out, which is what XLA is quick
at.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from cbjax.models.config import ModelConfig
from cbjax.models.layout import OneOf

# q [T, H, D], k and v [T, K, D] of one layer -> mixed values [T, H, D] and whatever it carries on.
Mixer = Callable[[Array, Array, Array], tuple[Array, object]]


def rms_norm(x: Float[Array, "... E"], gain: Float[Array, "E"], eps: float) -> Array:
    """Scale the last axis to unit root mean square, then by `gain` (RMSNorm, 2019)."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps) * gain


def rotation(config: ModelConfig, positions: Int[Array, "T"]) -> tuple[Array, Array]:
    """Cosine and sine of every rotated pair at each position, `[T, 1, D/2]` each, float32."""
    angles = positions[:, None].astype(jnp.float32) * config.rotary_frequencies()
    return jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]


def rotate(x: Float[Array, "T H D"], turn: tuple[Array, Array]) -> Float[Array, "T H D"]:
    """Turn the pairs (i, i + D/2) of each head: the half-split layout of Hugging Face."""
    cos, sin = turn
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def product(x: Float[Array, "T I"], weight: Float[Array, "O I"] | OneOf) -> Float[Array, "T O"]:
    """`x @ weight.T`, in float32.

    Args:
        x: `[T, I]`.
        weight: `[O, I]`, which XLA's CPU products read up to a third faster than `[I, O]`.

    Returns:
        `[T, O]` float32.
    """
    if isinstance(weight, OneOf):
        return weight.apply(product, x)
    rows, narrow = x.shape[0], weight.dtype == jnp.bfloat16
    if narrow and rows == 1:  # a single bfloat16 row misses XLA's fast path on the CPU, ten times
        x = jnp.concatenate([x, x])
    y = lax.dot_general(
        x.astype(weight.dtype),
        weight,
        (((1,), (1,)), ((), ())),
        precision=None if narrow else lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return y[:rows]


class Layer(nnx.Module):
    """One decoder layer: attention and a gated feed-forward, each added to the residual stream.

    The projections of q, k and v are one matrix, those of gate and up another: fewer, larger
    products, which matters most when a handful of tokens decode.
    """

    def __init__(self, config: ModelConfig, dtype: DTypeLike):
        width, head_dim, ffn = config.hidden_size, config.head_dim, config.ffn_size
        fused = (config.num_heads + 2 * config.num_kv_heads) * head_dim

        def parameter(*shape: int, dtype: DTypeLike = jnp.float32) -> nnx.Param:
            return nnx.Param(jnp.zeros(shape, dtype))

        self.attention_norm = parameter(width)
        self.qkv = parameter(fused, width, dtype=dtype)
        if config.qkv_bias:
            self.qkv_bias = parameter(fused)
        if config.qk_norm:
            self.q_norm = parameter(head_dim)
            self.k_norm = parameter(head_dim)
        self.output = parameter(width, config.num_heads * head_dim, dtype=dtype)
        self.ffn_norm = parameter(width)
        self.gate_up = parameter(2 * ffn, width, dtype=dtype)
        self.down = parameter(width, ffn, dtype=dtype)
        self.config = config

    def __call__(
        self, x: Float[Array, "T E"], turn: tuple[Array, Array], mix: Mixer
    ) -> tuple[Float[Array, "T E"], object]:
        """Add this layer's two contributions.

        Args:
            x: `[T, E]` residual stream.
            turn: from `rotation`, for the positions of the T tokens.
            mix: attention over whatever past the caller keeps.

        Returns:
            The new stream, and what `mix` carries on.
        """
        mixed, carried = mix(*self.heads(x, turn))
        x = x + product(mixed.reshape(x.shape[0], -1), self.output[...])
        both = product(rms_norm(x, self.ffn_norm[...], self.config.norm_eps), self.gate_up[...])
        gate, up = jnp.split(both, 2, axis=-1)
        return x + product(jax.nn.silu(gate) * up, self.down[...]), carried

    def heads(self, x: Float[Array, "T E"], turn: tuple[Array, Array]) -> tuple[Array, ...]:
        """Project the stream to rotated q `[T, H, D]`, rotated k and plain v `[T, K, D]`."""
        config, tokens = self.config, x.shape[0]
        fused = product(rms_norm(x, self.attention_norm[...], config.norm_eps), self.qkv[...])
        if config.qkv_bias:
            fused = fused + self.qkv_bias[...]
        fused = fused.reshape(tokens, -1, config.head_dim)
        split = config.num_heads, config.num_heads + config.num_kv_heads
        q, k, v = jnp.split(fused, split, axis=1)
        if config.qk_norm:
            q = rms_norm(q, self.q_norm[...], config.norm_eps)
            k = rms_norm(k, self.k_norm[...], config.norm_eps)
        return rotate(q, turn), rotate(k, turn), v
