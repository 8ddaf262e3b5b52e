"""The iteration batch: what one model step receives, padded to a rung of the ladder.

A flattened ragged batch: the tokens of all scheduled sequences lie one after another, so prefill
chunks and decodes mix freely and only the total is padded. Padding tokens write nowhere (their
block is out of range and the write is dropped) and unused sequences have context length 0.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core.blocks import NO_BLOCK
from cbjax.core.ladder import Rung
from cbjax.core.plan import Plan
from cbjax.core.rows import NO_ROW
from cbjax.core.state import State


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IterationBatch:
    """One iteration's tokens and where their KV goes; T tokens and S sequences of one rung.

    Tokens of one sequence are contiguous and in position order; the queries of sequence `s` are
    its positions `context_lengths[s] - n .. context_lengths[s] - 1`, `n` being its token count.
    """

    token_ids: Int[Array, "T"]
    positions: Int[Array, "T"]  # position in the sequence; 0 on padding
    sequences: Int[Array, "T"]  # sequence of the token; S on padding
    write_blocks: Int[Array, "T"]  # physical KV block; N on padding, so that the write is dropped
    write_offsets: Int[Array, "T"]  # offset within the block; 0 on padding
    query_starts: Int[Array, "S+1"]  # first token of each sequence; unused ones repeat the total
    context_lengths: Int[Array, "S"]  # tokens in the cache after this iteration; 0 = unused
    block_tables: Int[Array, "S M"]  # logical -> physical block; NO_BLOCK where none
    sample_tokens: Int[Array, "S"]  # token whose logits are sampled; 0 where none
    sampled: Bool[Array, "S"]  # whether the sequence gets a token from this iteration
    rows: Int[Array, "S"]  # state row of each sequence; NO_ROW where unused
    num_tokens: Int[Array, ""]
    num_sequences: Int[Array, ""]


def pack(state: State, plan: Plan, rung: Rung) -> IterationBatch:
    """Lay the planned tokens out flat, in run order, padded to `rung`.

    Args:
        state: the state that `schedule` returned (its `computed` already counts the grants).
        plan: the plan that `schedule` returned with it.
        rung: static; must hold `plan.scheduled_tokens` tokens and as many sequences as have one.

    Returns:
        The batch; T = `rung.tokens`, S = `rung.sequences`.
    """
    tokens, sequences = rung.tokens, rung.sequences
    num_blocks = state.blocks.refs.shape[0]

    granted = plan.grants > 0
    place = jnp.cumsum(granted) - 1
    lane = jnp.where(granted, place, sequences)
    rows = jnp.full(sequences, NO_ROW).at[lane].set(plan.running, mode="drop")
    counts = jnp.zeros(sequences, jnp.int32).at[lane].set(plan.grants, mode="drop")
    used = rows != NO_ROW
    row = jnp.where(used, rows, 0)

    ends = jnp.cumsum(counts)
    starts = ends - counts
    total = ends[-1]
    # Every sequence marks its first token; the running maximum names the owner of each token.
    first = jnp.where(used, starts, tokens)
    owner = jnp.zeros(tokens, jnp.int32).at[first].set(jnp.arange(sequences), mode="drop")
    owner = jax.lax.cummax(owner)

    token = jnp.arange(tokens)
    live = token < total
    context = jnp.where(used, state.rows.computed[row], 0)
    position = jnp.where(live, (context - ends)[owner] + token, 0)
    token_row = row[owner]
    block_size = state.system.block_size
    block = state.blocks.tables[token_row, position // block_size]
    # A table is stale beyond the blocks that its row holds.
    held = jnp.where(used, state.rows.held[row], 0)
    owned = jnp.arange(state.blocks.tables.shape[1]) < held[:, None]
    return IterationBatch(
        token_ids=jnp.where(live, state.token_ids[token_row, position], 0),
        positions=position,
        sequences=jnp.where(live, owner, sequences),
        write_blocks=jnp.where(live, block, num_blocks),
        write_offsets=jnp.where(live, position % block_size, 0),
        query_starts=jnp.concatenate([jnp.zeros(1, jnp.int32), ends]),
        context_lengths=context,
        block_tables=jnp.where(owned, state.blocks.tables[row], NO_BLOCK),
        sample_tokens=jnp.where(used, ends - 1, 0),
        sampled=used & plan.samples[row],
        rows=rows,
        num_tokens=total,
        num_sequences=jnp.sum(used),
    )
