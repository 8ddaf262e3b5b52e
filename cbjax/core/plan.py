"""The plan: what `schedule` decided, carried out and numbered. It never feeds back.

Everything a batch, a recorder or an explanation needs of one iteration is here, so none of them has
to look into the state.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, Int

from cbjax.core.samples import Taken
from cbjax.core.time import Time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Plan:
    """One iteration; P rows, S seats, A inbox entries."""

    running: Int[Array, "S"]  # rows that hold a seat, in run order; NO_ROW
    grants: Int[Array, "S"]  # their tokens in this iteration, 0 = not scheduled
    fresh: Int[Array, "S"]  # of these, positions computed for the first time
    prefilling: Bool[Array, "S"]  # whether the tokens are prefill
    requests: Int[Array, "P"]  # handle of every row before the decision
    samples: Bool[Array, "P"]  # rows that produce a token in this iteration
    # Of these, rows that produced it before and lost it; None unless `Traits.drops_in_flight`.
    repeats: Bool[Array, "P"] | None
    admitted: Bool[Array, "P"]
    resumed: Bool[Array, "P"]  # of these, rows that ran before
    cached: Int[Array, "P"] | None  # tokens that admitted rows found computed; None without sharing
    preempted: Bool[Array, "P"]
    preempt_order: Int[Array, "P"] | None  # order of preemption; None = last running first
    swapped_out: Bool[Array, "P"]  # preempted rows whose KV moves to the host pool
    swapped_in: Bool[Array, "P"]
    taken: Taken | None  # KV taken over from other samples; None without `Limits.shares_samples`
    refused: Int[Array, "P"]  # Refusal of rows that the policy turned away
    entered: Int[Array, "A"]  # row of each arrival; NO_ROW if refused or if no row was free
    turned_away: Int[Array, "A"]  # Refusal of each arrival at the door
    max_tokens: Int[Array, "A"]  # output tokens each arrival may have after clamping
    aborted_requests: Int[Array, "A"]  # handles ended by each abort; NO_REQUEST where none was
    scheduled_tokens: Int[Array, ""]
    prefill_tokens: Int[Array, ""]
    extra_tokens: Int[Array, ""]  # padding that the policy asked for
    num_sequences: Int[Array, ""]  # rows with tokens
    num_running: Int[Array, ""]
    num_waiting: Int[Array, ""]  # waiting rows, backlog apart
    backlog: Int[Array, ""]
    free_rows: Int[Array, ""]  # rows that further arrivals may take
    free_blocks: Int[Array, ""]
    live_tokens: Int[Array, ""]  # positions that hold KV after this iteration
    queue_order: Int[Array, "P"]  # keys of the rows still waiting
    waiting: Bool[Array, "P"]  # rows still waiting
    limited_by: Int[Array, ""]  # LimitedBy
    wake: Time

    def moves_kv(self) -> Bool[Array, ""]:
        """Whether KV has to be moved before the iteration is computed."""
        moves = self.swapped_out.any() | self.swapped_in.any()
        return moves if self.taken is None else moves | (self.taken.tokens > 0).any()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Emitted:
    """What `commit` found: tokens and endings, per row of the plan."""

    requests: Int[Array, "P"]
    tokens: Int[Array, "P"]
    emitted: Bool[Array, "P"]  # rows that received a token
    finished: Int[Array, "P"]  # FinishReason; NONE where the request goes on
    num_running: Int[Array, ""]  # rows that still hold a seat
