"""Measured: step times of a model on a device, as coefficients derived from measurements."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cbjax import hardware as tables
from cbjax.simulate.work import Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Measured:
    """A constant, and a part per prompt token, sequence, position read and attended pair."""

    base_s: Float[Array, ""]
    per_prefill_token_s: Float[Array, ""]
    per_sequence_s: Float[Array, ""]
    per_context_s: Float[Array, ""]
    per_pair_s: Float[Array, ""]
    overhead_s: Float[Array, ""]

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Seconds of each iteration."""
        context = work.context.astype(jnp.float32)
        # A decode attends to its context once, which `per_context` pays for; the rest is prefill.
        pairs = jnp.maximum(work.attended - context, 0.0)
        return (
            self.base_s + self.overhead_s
            + self.per_prefill_token_s * work.prefill_tokens.astype(jnp.float32)
            + self.per_sequence_s * work.sequences.astype(jnp.float32)
            + self.per_context_s * context + self.per_pair_s * pairs
        )


def measured(hardware: str, model: str, overhead_s: float = 0.001) -> Measured:
    """An iteration takes what measured kernels add up to.

    Args:
        hardware: e.g. "h100".
        model: e.g. "llama3.1-8b"; on one device, in bfloat16.
        overhead_s: seconds of every iteration for sampling and the host, which the measurements
            leave out.

    Raises:
        ValueError: nothing was measured for this pair, or the overhead is negative.

    Source: `cbjax/hardware/data/step_times.yaml`.
    """
    if not overhead_s >= 0:
        raise ValueError(f"overhead_s = {overhead_s!r}: give 0 or more")
    terms = tables.step_times(hardware, model)
    return Measured(*map(jnp.float32, (
        terms.base_s, terms.per_prefill_token_s, terms.per_sequence_s, terms.per_context_s,
        terms.per_pair_s, overhead_s,
    )))
