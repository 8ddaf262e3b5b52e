"""Capacities that set array shapes, and the numbers of one system below them.

`Limits` is static and hashable: one compiled program per value. `System` holds *numbers*, at most
those capacities, so that block size, pool size and maximum length can be swept in one program.
"""

from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

_MAY_BE_NONE = ("blocks_per_sequence", "context", "cached_tokens", "shares_samples")


@dataclass(frozen=True)
class Limits:
    """Static capacities; letters as in the docstrings (P = S + W rows).

    Attributes:
        seats: S, most requests that may run at a time.
        window: W, waiting requests that a policy can see.
        tokens: T, most tokens of one iteration.
        blocks: N, KV blocks.
        blocks_per_sequence: M, length of a block table; 0 keeps no tables and only counts blocks
            (simulation needs only their number).
        inbox: A, arrivals and aborts that one `schedule` takes in.
        context: C, token ids kept per row; 0 keeps none (simulation needs only their number).
        cached_tokens: K, token ids kept of cached blocks; 0 = no prefix sharing.
        shares_samples: requests of one group share KV below the policy (see `core/samples.py`).
    """

    seats: int
    window: int
    tokens: int
    blocks: int
    blocks_per_sequence: int
    inbox: int
    context: int = 0
    cached_tokens: int = 0
    shares_samples: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_NONE else 1
            if not isinstance(value, int) or value < least:
                raise ValueError(
                    f"limits.{field.name} = {value!r}: give a whole number of at least {least}"
                )

    @property
    def rows(self) -> int:
        """P, the rows of the state: one per seat and one per place in the window."""
        return self.seats + self.window


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class System:
    """The numbers of one system: KV block size, usable blocks, longest sequence."""

    block_size: Int[Array, ""]  # token positions per KV block
    num_blocks: Int[Array, ""]  # usable KV blocks
    max_length: Int[Array, ""]  # most tokens of a sequence, prompt and output together
    swap_blocks: Int[Array, ""]  # KV blocks of the host pool that preempted rows may be swapped to


def system(
    limits: Limits, *, block_size: int, num_blocks: int, max_length: int, swap_blocks: int = 0
) -> System:
    """Check the numbers of a system against its limits.

    Args:
        limits: the capacities.
        block_size: token positions per KV block.
        num_blocks: usable KV blocks, at most `limits.blocks`.
        max_length: most tokens of a sequence; a table of M blocks must be able to hold it.
        swap_blocks: KV blocks of the host pool; 0 = no swapping.

    Raises:
        ValueError: a number is not positive or exceeds its capacity.
    """
    for name, value in (
        ("block_size", block_size), ("num_blocks", num_blocks), ("max_length", max_length),
    ):
        if value < 1:
            raise ValueError(f"{name} = {value}: give a whole number of at least 1")
    if num_blocks > limits.blocks:
        raise ValueError(
            f"num_blocks = {num_blocks} exceeds limits.blocks = {limits.blocks}: "
            "raise the limit or use fewer blocks"
        )
    reach = limits.blocks_per_sequence * block_size
    if limits.blocks_per_sequence and min(max_length, num_blocks * block_size) > reach:
        raise ValueError(
            f"max_length = {max_length} tokens needs more than limits.blocks_per_sequence = "
            f"{limits.blocks_per_sequence} blocks of {block_size}: raise the limit or shorten it"
        )
    if limits.context and max_length > limits.context:
        raise ValueError(
            f"max_length = {max_length} exceeds limits.context = {limits.context} token ids kept "
            "per row: raise limits.context or shorten max_length"
        )
    if limits.cached_tokens and num_blocks * block_size > limits.cached_tokens:
        raise ValueError(
            f"num_blocks x block_size = {num_blocks * block_size} exceeds limits.cached_tokens = "
            f"{limits.cached_tokens}: raise the limit or use a smaller pool"
        )
    if swap_blocks < 0:
        raise ValueError(f"swap_blocks = {swap_blocks}: give 0 for no swapping, or more")
    return System(*map(jnp.int32, (block_size, num_blocks, max_length, swap_blocks)))


def blocks_for(tokens, block_size):
    """Blocks that hold `tokens` positions: the quotient rounded up; no number may be negative.

    The compiled form divides as the machine does: rounding towards minus infinity, as `//` means,
    costs as much again for signs that never occur.
    """
    up = tokens + block_size - 1
    if isinstance(up, int):
        return up // block_size
    return lax.div(up, jnp.broadcast_to(block_size, jnp.shape(up)).astype(up.dtype))
