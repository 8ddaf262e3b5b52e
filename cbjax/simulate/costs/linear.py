"""Linear: a constant, and a part per token, per position of context and per swapped block."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cbjax.simulate.costs._checks import require_not_negative
from cbjax.simulate.work import Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Linear:
    """base + per_token * tokens + per_context * context + per_moved_block * moved."""

    base_s: Float[Array, ""] | float
    per_token_s: Float[Array, ""] | float
    per_context_s: Float[Array, ""] | float
    per_moved_block_s: Float[Array, ""] | float

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Seconds of each iteration."""
        tokens, context = work.tokens.astype(jnp.float32), work.context.astype(jnp.float32)
        computes = self.base_s + self.per_token_s * tokens + self.per_context_s * context
        return computes + self.per_moved_block_s * work.moved.astype(jnp.float32)


def linear(
    base_s: float, per_token_s: float = 0.0, per_context_s: float = 0.0,
    per_moved_block_s: float = 0.0,
) -> Linear:
    """Seconds of an iteration: a constant and parts in proportion to its work.

    Args:
        base_s: seconds of any iteration.
        per_token_s: seconds per computed position.
        per_context_s: seconds per KV position that is read.
        per_moved_block_s: seconds per KV block that is swapped to the host or back; the iteration
            waits for it.

    Raises:
        ValueError: a number is negative, or all are 0: no time would pass.
    """
    parts = dict(
        base_s=base_s, per_token_s=per_token_s, per_context_s=per_context_s,
        per_moved_block_s=per_moved_block_s,
    )
    require_not_negative(**parts)
    return Linear(*map(jnp.float32, parts.values()))
