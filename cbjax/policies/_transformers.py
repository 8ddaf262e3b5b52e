"""Parts of the transformers policy: a walk that skips what does not fit, and who makes room.

The original walks the running requests one by one: a request that lacks blocks or exceeds the read
budget is skipped and the next one tried. Here all are served at once, by prefix sums, and whoever
does not fit is left out of the next try: as many tries as there are runs of rows that do not fit.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core.limits import blocks_for
from cbjax.core.reasons import LimitedBy
from cbjax.core.rules import exclusive_sum


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Candidates:
    """The running rows in the order of service."""

    rows: Int[Array, "S"]  # NO_ROW behind the last
    alive: Bool[Array, "S"]  # seated and not preempted
    want: Int[Array, "S"]  # tokens not computed yet
    computed: Int[Array, "S"]
    held: Int[Array, "S"]
    decoding: Bool[Array, "S"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Left:
    """What is left of an iteration, and what ends its walk."""

    tokens: Int[Array, ""]
    requests: Int[Array, ""]  # further requests that the batch may have
    reads: Int[Array, ""]  # KV entries that the batch may still read; below 0 on the fast path
    free: Int[Array, ""]  # free blocks
    fast: Bool[Array, ""]  # all so far decode within the fast path
    any: Bool[Array, ""]  # something is scheduled
    scarce: Bool[Array, ""]  # fewer free blocks than the safety margin when the walk began
    short: Int[Array, ""]  # positions below which a single token is on the fast path

    def stop(self) -> Int[Array, ""]:
        """Why the walk ends before the next request that is not decoding; QUEUE_EMPTY: it goes on.

        `WATERMARK` does not hold a decoding request back.
        """
        return jnp.select(
            [
                ~self.any, self.tokens <= 0, self.requests <= 0, (self.reads <= 0) & ~self.fast,
                self.scarce,
            ],
            [
                int(LimitedBy.QUEUE_EMPTY), int(LimitedBy.BUDGET), int(LimitedBy.SEATS),
                int(LimitedBy.READS), int(LimitedBy.WATERMARK),
            ],
            int(LimitedBy.QUEUE_EMPTY),
        )

    def reads_allow(self, tokens, computed):
        """Whether the read budget lets a request have that many tokens."""
        return (self.fast & (tokens == 1) & (computed < self.short)) | (self.reads >= computed)

    def without(self, tokens, computed, blocks) -> "Left":
        """What is left behind one more request."""
        return Left(
            tokens=self.tokens - tokens, requests=self.requests - 1, reads=self.reads - computed,
            free=self.free - blocks, fast=self.fast & (tokens == 1) & (computed < self.short),
            any=jnp.bool_(True), scarce=self.scarce, short=self.short,
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Served:
    """The running rows after the walk, in the order of service."""

    grant: Int[Array, "S"]
    need: Int[Array, "S"]  # blocks that each lacks for what it could have had
    starved: Bool[Array, "S"]  # rows without tokens for want of blocks
    left: Left
    stop: Int[Array, ""]  # LimitedBy that ended the walk; QUEUE_EMPTY = it reached the end


def serve(rows: Candidates, left: Left, block_size: Int[Array, ""]) -> Served:
    """Tokens for the running rows in order, first fit.

    Args:
        rows: who is served.
        left: what there is; nothing is scheduled yet.
        block_size: positions of a block.
    """

    def at(skip: Bool[Array, "S"]):
        """Everything along the walk, with the rows in `skip` left out."""
        served = rows.alive & ~skip
        tokens = left.tokens - exclusive_sum(jnp.where(served, rows.want, 0))
        could = jnp.where(rows.alive, jnp.clip(tokens, 0, rows.want), 0)
        grant = jnp.where(served, could, 0)
        need = jnp.maximum(blocks_for(rows.computed + could, block_size) - rows.held, 0)
        short = (could == 1) & (rows.computed < left.short)
        before = Left(
            tokens=tokens,
            requests=left.requests - exclusive_sum(served.astype(jnp.int32)),
            reads=left.reads - exclusive_sum(jnp.where(served, rows.computed, 0)),
            free=left.free - exclusive_sum(jnp.where(served, need, 0)),
            fast=exclusive_sum((served & ~short).astype(jnp.int32)) == 0,
            any=exclusive_sum(served.astype(jnp.int32)) > 0,
            scarce=left.scarce, short=left.short,
        )
        reason = before.stop()
        ends = rows.alive & (reason != LimitedBy.QUEUE_EMPTY)
        ends &= ~(rows.decoding & (reason == LimitedBy.WATERMARK))
        within = jnp.cumsum(ends) == 0
        allowed = before.reads_allow(could, rows.computed)
        return before, could, grant, need, within, reason, ends, allowed

    def leave_out(carry):
        skip, _ = carry
        before, _, _, need, within, _, _, allowed = at(skip)
        tried = rows.alive & ~skip & within
        misfit = tried & (~allowed | (need > before.free))
        index = jnp.argmax(misfit)
        # Behind it, single tokens that lack blocks now will lack them when their turn comes.
        behind = (jnp.arange(misfit.shape[0]) >= index) & (rows.want == 1)
        hopeless = rows.alive & behind & (need > before.free[index])
        found = jnp.any(misfit)
        skip = skip | (found & (hopeless | (jnp.arange(misfit.shape[0]) == index)))
        return skip, found

    skip, _ = lax.while_loop(
        lambda carry: carry[1], leave_out, (jnp.zeros_like(rows.alive), jnp.bool_(True))
    )
    before, could, grant, need, within, reason, ends, allowed = at(skip)
    grant = jnp.where(within, grant, 0)
    got = grant > 0
    starved = rows.alive & skip & within & allowed & (need > before.free)
    count = jnp.sum(got)
    after = Left(
        tokens=left.tokens - jnp.sum(grant), requests=left.requests - count,
        reads=left.reads - jnp.sum(jnp.where(got, rows.computed, 0)),
        free=left.free - jnp.sum(jnp.where(got, need, 0)),
        fast=jnp.all(~got | ((grant == 1) & (rows.computed < left.short))),
        any=count > 0, scarce=left.scarce, short=left.short,
    )
    last = after.stop()
    stop = jnp.where(jnp.any(ends), reason[jnp.argmax(ends)], last)
    return Served(grant=grant, need=need, starved=starved, left=after, stop=stop)


def victims(rows: Candidates, served: Served) -> Bool[Array, "S"]:
    """Who gives its blocks up: the last that starve, until what is left of them would fit.

    One running request always stays, so that somebody gets on.
    """
    starved = served.starved
    behind = jnp.cumsum(starved[::-1])[::-1]  # of those that starve, from here to the last
    room = jnp.cumsum(jnp.where(starved, rows.held, 0)[::-1])[::-1]
    room = served.left.free + room - jnp.where(starved, rows.held, 0)
    lacking = jnp.cumsum(jnp.where(starved, served.need, 0))
    return starved & (lacking > room) & (behind < jnp.sum(rows.alive))


def stored(held: Int[Array, "S"], victim: Bool[Array, "S"], pool: Int[Array, ""]):
    """Which victims' KV the host pool takes: the last first, each if it fits whole."""
    need = jnp.where(victim, held, 0)[::-1]

    def leave_out(takes):
        misfit = takes & (jnp.cumsum(jnp.where(takes, need, 0)) > pool)
        return takes & ~(misfit & (jnp.cumsum(misfit) == 1))

    def fits(takes):
        return jnp.sum(jnp.where(takes, need, 0)) <= pool

    takes = (need > 0) & (need <= pool)
    return lax.while_loop(lambda takes: ~fits(takes), leave_out, takes)[::-1]
