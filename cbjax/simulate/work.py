"""What an iteration has to compute, as far as its duration may depend on it."""

from dataclasses import dataclass
from typing import Protocol

import jax
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Work:
    """One iteration, or K iterations one after another."""

    iteration: Int[Array, "*K"]  # its number in the run, from 0
    tokens: Int[Array, "*K"]  # positions computed, padding included where it is counted
    prefill_tokens: Int[Array, "*K"]  # of these, prefill
    sequences: Int[Array, "*K"]  # requests with tokens
    context: Int[Array, "*K"]  # KV positions read: all that these requests hold, new ones included
    attended: Float[Array, "*K"]  # pairs of a computed and an attended position
    moved: Int[Array, "*K"]  # KV blocks moved to the host pool or back


class Cost(Protocol):
    """A cost model: a pytree of numbers."""

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """How long each iteration takes, in seconds (float32)."""
