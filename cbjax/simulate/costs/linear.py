"""Linear: a constant, a part per token and a part per position of context."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cbjax.simulate.costs._checks import require_not_negative
from cbjax.simulate.work import Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Linear:
    """base + per_token * tokens + per_context * context."""

    base_s: Float[Array, ""] | float
    per_token_s: Float[Array, ""] | float
    per_context_s: Float[Array, ""] | float

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Seconds of each iteration."""
        tokens, context = work.tokens.astype(jnp.float32), work.context.astype(jnp.float32)
        return self.base_s + self.per_token_s * tokens + self.per_context_s * context


def linear(base_s: float, per_token_s: float = 0.0, per_context_s: float = 0.0) -> Linear:
    """An iteration takes `base_s + per_token_s * tokens + per_context_s * context` seconds.

    Args:
        base_s: seconds of any iteration.
        per_token_s: seconds per computed position.
        per_context_s: seconds per KV position that is read.

    Raises:
        ValueError: a number is negative, or all are 0: no time would pass.
    """
    require_not_negative(base_s=base_s, per_token_s=per_token_s, per_context_s=per_context_s)
    return Linear(*map(jnp.float32, (base_s, per_token_s, per_context_s)))
