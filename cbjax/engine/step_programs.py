"""The programs of a model step: forward, one per rung, and sampling, one per variant.

Weights and KV cache are arguments, never closed over; the cache is donated and updated in place.
They are separate programs, so that their number is a sum, not a product.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core.batch import pack
from cbjax.core.ladder import Rung
from cbjax.core.plan import Plan
from cbjax.core.state import State
from cbjax.engine.sampling import SamplingParams, ends_here, sample
from cbjax.models import ModelConfig, Weights, forward
from pallas_kernels.quantised import Cache


@partial(
    jax.jit, static_argnames=("config", "rung", "attention"), donate_argnames=("keys", "values")
)
def forward_step(
    weights: Weights, keys: Cache, values: Cache, state: State, plan: Plan, *,
    config: ModelConfig, rung: Rung, attention: str | None,
):
    """Pack the plan into a batch of one rung and run the model on it.

    Args:
        weights: the model's.
        keys, values: the KV cache; donated.
        state, plan: as `schedule` returned them.
        config, rung, attention: static.

    Returns:
        Logits `[S, V]`, the rows they belong to (P where none is sampled), the output tokens of
        each row so far, and the cache.
    """
    batch = pack(state, plan, rung)
    logits, keys, values = forward(weights, config, keys, values, batch, attention=attention)
    rows = jnp.where(batch.sampled, batch.rows, state.rows.request.shape[0])
    return logits, rows, state.outputs, keys, values


@partial(jax.jit, static_argnames=("vocab_size", "greedy_only"))
def sample_step(
    logits: Array, rows: Int[Array, "S"], outputs: Int[Array, "P"], params: SamplingParams, *,
    vocab_size: int, greedy_only: bool,
) -> tuple[Int[Array, "P"], Bool[Array, "P"]]:
    """Draw a token for each sampled row.

    Args:
        logits: `[S, V]`.
        rows: row of each sequence; P where none is sampled.
        outputs: output tokens of each row so far: the index of the token in its request.
        params: sampling settings of all P rows.
        vocab_size, greedy_only: static.

    Returns:
        Token of each row, and whether it ends its request.
    """
    count = outputs.shape[0]
    row = jnp.minimum(rows, count - 1)
    mine = params.at(row)
    index = outputs[row]
    drawn = sample(logits, mine, index, vocab_size, greedy_only=greedy_only)
    tokens = jnp.zeros(count, jnp.int32).at[rows].set(drawn, mode="drop")
    stopped = jnp.zeros(count, bool).at[rows].set(ends_here(mine, drawn), mode="drop")
    return tokens, stopped
