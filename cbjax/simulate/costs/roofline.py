"""Roofline: memory or arithmetic, whichever takes longer, from numbers of model and device."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cbjax.simulate.costs._checks import require_above_zero
from cbjax.simulate.work import Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Roofline:
    """max(bytes / bandwidth, FLOPs / rate) + overhead."""

    weights_s: Float[Array, ""] | float  # seconds to read the weights once
    kv_s: Float[Array, ""] | float  # seconds to read or write the KV of one position
    token_s: Float[Array, ""] | float  # seconds of arithmetic per position
    pair_s: Float[Array, ""] | float  # seconds of arithmetic per attended pair
    sequence_s: Float[Array, ""] | float  # seconds of arithmetic per sequence: its logits
    overhead_s: Float[Array, ""] | float

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Seconds of each iteration."""
        tokens, context = work.tokens.astype(jnp.float32), work.context.astype(jnp.float32)
        # `context` holds the new positions, which are written; all of them are read.
        memory = self.weights_s + self.kv_s * (context + tokens)
        arithmetic = self.token_s * tokens + self.pair_s * work.attended
        arithmetic += self.sequence_s * work.sequences.astype(jnp.float32)
        return jnp.maximum(memory, arithmetic) + self.overhead_s


def roofline(
    weight_bytes: float, kv_bytes_per_token: float, flops_per_token: float, *,
    bandwidth: float, flop_rate: float, flops_per_pair: float = 0.0,
    flops_per_sequence: float = 0.0, overhead_s: float = 0.0,
    bandwidth_efficiency: float = 1.0, flop_efficiency: float = 1.0,
) -> Roofline:
    """An iteration takes `max(bytes / bandwidth, FLOPs / rate) + overhead` seconds.

    The bytes are the weights once and the KV of every position read or written; the FLOPs are
    those of the computed positions and of the attended pairs.

    Args:
        weight_bytes: bytes of the weights that an iteration reads.
        kv_bytes_per_token: bytes of KV of one position, all layers.
        flops_per_token: of one position, attention apart (about twice the parameters).
        bandwidth: bytes per second.
        flop_rate: FLOPs per second.
        flops_per_pair: of a query and a key, all layers (4 x heads x head size x layers).
        flops_per_sequence: of one row of logits, where `flops_per_token` leaves the head out.
        overhead_s: seconds of every iteration that neither explains.
        bandwidth_efficiency, flop_efficiency: shares of both rates that are reached, 0 < x <= 1.

    Raises:
        ValueError: a number is out of range.

    Source: the roofline model (Williams, Waterman, Patterson, CACM 2009).
    """
    require_above_zero(
        weight_bytes=weight_bytes, kv_bytes_per_token=kv_bytes_per_token,
        flops_per_token=flops_per_token, bandwidth=bandwidth, flop_rate=flop_rate,
    )
    for name, share in (
        ("bandwidth_efficiency", bandwidth_efficiency), ("flop_efficiency", flop_efficiency)
    ):
        if not 0 < share <= 1:
            raise ValueError(f"{name} = {share!r}: give a share, 0 < share <= 1")
    for name, value in (
        ("flops_per_pair", flops_per_pair), ("flops_per_sequence", flops_per_sequence),
        ("overhead_s", overhead_s),
    ):
        if not value >= 0:
            raise ValueError(f"{name} = {value!r}: give 0 or more")
    bytes_per_s, flops_per_s = bandwidth * bandwidth_efficiency, flop_rate * flop_efficiency
    return Roofline(*map(jnp.float32, (
        weight_bytes / bytes_per_s, kv_bytes_per_token / bytes_per_s,
        flops_per_token / flops_per_s, flops_per_pair / flops_per_s,
        flops_per_sequence / flops_per_s, overhead_s,
    )))
