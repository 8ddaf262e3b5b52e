"""SGLang's admission of one waiting request after another to a prefill batch."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from cbjax.core import rules
from cbjax.core.control import when
from cbjax.core.limits import blocks_for
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import NO_ROW
from cbjax.core.view import View
from cbjax.policies import _sglang_ratio as ratios
from cbjax.policies import _sglang_tree as trees
from cbjax.policies._sglang_ratio import Ratio
from cbjax.policies._sglang_tree import Pool, Tree

CLIP = 4096  # most output tokens that an estimate counts


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ends:
    """The running requests by the tokens they have left, shortest first."""

    left: Int[Array, "E"]  # E = S + 1
    held: Int[Array, "E"]
    count: Int[Array, ""]
    fresh: Bool[Array, ""]  # nobody was inserted yet


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adder:
    """The budgets of a prefill batch while it is built."""

    room: Int[Array, ""]  # tokens of memory that are not spoken for, the estimate apart
    now: Int[Array, ""]  # tokens of memory left in this iteration
    input: Int[Array, ""]  # tokens left of max_prefill_tokens
    chunk: Int[Array, ""]  # tokens left of chunked_prefill_size
    seats: Int[Array, ""]
    size: Int[Array, ""]  # members of the prefill batch
    batch: Int[Array, ""]  # members of the running batch
    estimated: Int[Array, ""]  # output tokens left to the running batch
    chunked: Int[Array, ""]  # row that is left in the middle of its prefill; NO_ROW
    closed: Int[Array, ""]  # LimitedBy after the last admission; QUEUE_EMPTY = open
    victims: Bool[Array, "P"]  # running rows that made room for more urgent ones
    order: Int[Array, "P"]  # order among them
    gone: Int[Array, ""]  # how many they are
    ends: Ends
    pool: Any  # Pool, if prefixes are shared; else None


@dataclass(frozen=True)
class _Hits:
    """What a request would find in the prefix cache."""

    found: Int[Array, "M"]
    count: Int[Array, ""]
    idle: Int[Array, ""]  # of these, blocks that nobody holds: to take them costs memory


@dataclass(frozen=True)
class Admission:
    """What admission is decided by; `offer` is asked for the head of the queue."""

    knobs: dict[str, Any]
    view: View
    ratio: Ratio
    tokens: Int[Array, "P"]  # known tokens as the scheduler has seen them
    estimate: Int[Array, "P"]  # output tokens left to each row, clipped
    member: Bool[Array, "P"]  # rows of the running batch

    def offer(self, row, queue: rules.Queue) -> rules.Offer:
        """Whether the request fits seats, memory and budgets, and how much of it."""
        adder: Adder = queue.extra
        hits = None if adder.pool is None else self._hits(adder.pool, row)
        extend = self.tokens[row]
        taken: Any = 0
        if hits is not None:
            extend -= hits.count * self.block_size
            taken = hits.idle * self.block_size
        total, pages = extend + self.estimate[row], self.pages(extend)
        ends = self._insert(adder.ends, row)
        known_ends = self.knobs["ignore_eos"]
        # A chunk is a whole number of pages, except where every end is known.
        piece = jnp.where(known_ends, adder.chunk, adder.chunk - adder.chunk % self.block_size)
        whole = jnp.where(known_ends, extend, pages) <= adder.chunk
        other = (~known_ends & (pages >= adder.input) & (adder.size > 0)) | (
            ~whole & (piece <= 0)
        )
        lacks = jnp.where(
            known_ends, self._collide(adder, ends, pages),
            ratios.at_least(self.ratio, adder.estimated, adder.room - taken - total),
        )
        # Alone it runs whatever the estimate says, or it would wait for ever.
        lacks &= ~(self.knobs["check_memory"] & (adder.batch == 0) & (adder.size == 0))
        seats_out = adder.seats <= 0
        tries = self.knobs["enable_priority_scheduling"] & (seats_out | lacks) & ~other
        bare = replace(adder, pool=None)
        roomy, made = lax.cond(
            tries & (adder.closed == LimitedBy.QUEUE_EMPTY),
            lambda: self._make_room(bare, row, total, hits, adder.pool),
            lambda: (
                replace(bare, room=bare.room - taken, now=bare.now - taken), jnp.bool_(False)
            ),
        )
        limited_by = jnp.select(
            [adder.closed != LimitedBy.QUEUE_EMPTY, made, seats_out, lacks, other],
            [
                adder.closed, int(LimitedBy.QUEUE_EMPTY), int(LimitedBy.SEATS),
                int(LimitedBy.BLOCKS), int(LimitedBy.BUDGET),
            ],
            int(LimitedBy.QUEUE_EMPTY),
        )
        tokens = jnp.where(whole, extend, piece)
        output = jnp.where(whole, jnp.minimum(self.view.rows.max_tokens[row], CLIP), 0)
        roomy = replace(
            roomy, seats=roomy.seats - 1, ends=ends,
            chunked=jnp.where(whole, roomy.chunked, row.astype(jnp.int32)),
        )
        charged = self.charge(roomy, tokens, output)
        if hits is None:
            return rules.Offer(tokens, tokens, limited_by, charged)

        def take(adder: Adder) -> Adder:
            pool = trees.release_all(adder.pool, charged.victims & ~adder.victims)
            pool = replace(pool, tree=trees.walk(pool.tree, hits.found, hits.count))
            pool = trees.attach(pool, row, hits.found, hits.count, self.block_size)
            return replace(charged, pool=pool)

        return rules.Offer(
            tokens, hits.count * self.block_size + tokens, limited_by, take=take
        )

    def _hits(self, pool: Pool, row) -> _Hits:
        """What it would find if it were admitted: one token is left to compute."""
        found, count = trees.match(
            pool, self.view.token_ids[row], self.tokens[row] - 1, self.block_size
        )
        return _Hits(found, count, trees.idle(pool, found, count))

    def refuse(self, view: View, queue: rules.Queue, walks, urgency: Int[Array, "P"]) -> Adder:
        """After the walk: who was asked and refused has used the cache all the same."""
        adder: Adder = queue.extra
        left, last = view.waiting & ~queue.admit, jnp.iinfo(jnp.int32).max
        first = left & (urgency == jnp.min(jnp.where(left, urgency, last)))
        row = jnp.argmin(jnp.where(first, view.rows.queue_order, last))
        asked = walks & left[row] & (adder.closed == LimitedBy.QUEUE_EMPTY)
        asked &= (adder.seats > 0) | self.knobs["enable_priority_scheduling"]

        def look(tree: Tree) -> Tree:
            hits = self._hits(replace(adder.pool, tree=tree), row)
            return trees.walk(tree, hits.found, hits.count)

        tree = when(asked, look, adder.pool.tree)
        return replace(adder, pool=replace(adder.pool, tree=tree))

    @property
    def block_size(self):
        return self.view.system.block_size

    def pages(self, tokens):
        """Tokens rounded up to whole pages."""
        return blocks_for(tokens, self.block_size) * self.block_size

    def charge(self, adder: Adder, tokens, output) -> Adder:
        """A request more in the batch, and whether another one may follow."""
        pages = self.pages(tokens)
        adder = replace(
            adder, room=adder.room - pages - output, now=adder.now - pages,
            input=adder.input - pages, chunk=adder.chunk - pages, size=adder.size + 1,
        )
        no_memory = ratios.at_least(self.ratio, adder.estimated, adder.room) | (adder.now <= 0)
        no_budget = (adder.input <= 0) | (adder.chunk <= 0)
        closed = jnp.select(
            [no_memory, no_budget], [int(LimitedBy.BLOCKS), int(LimitedBy.BUDGET)],
            int(LimitedBy.QUEUE_EMPTY),
        )
        return replace(adder, closed=closed.astype(jnp.int32))

    def ends(self, among: Bool[Array, "P"]) -> Ends:
        """The rows in `among`, in the order of their ends; nobody unless ends are known."""
        view = self.view
        seats = view.running.shape[0]

        def in_order():
            inside = view.seated & among[view.running]
            left = jnp.where(inside, self._left()[view.running], jnp.iinfo(jnp.int32).max)
            first = jnp.argsort(left, stable=True)
            held = jnp.where(inside, self.tokens[view.running], 0)
            return left[first], held[first], jnp.sum(inside)

        nobody = jnp.zeros(seats, jnp.int32)
        left, held, count = lax.cond(
            self.knobs["ignore_eos"], in_order, lambda: (nobody, nobody, jnp.sum(nobody))
        )
        return Ends(
            left=jnp.append(left, 0), held=jnp.append(held, 0), count=count, fresh=jnp.bool_(True)
        )

    def _left(self):
        rows = self.view.rows
        return rows.max_tokens - (self.tokens - rows.prompt)

    def _insert(self, ends: Ends, row) -> Ends:
        """The request among those that run, before the first that has as much left.

        A later one with more left than all lands before the last, as in the original: after that
        they are not in order any more.
        """
        index = jnp.arange(ends.left.shape[0])
        left = self._left()[row]
        behind = (index < ends.count) & (left <= ends.left)
        last = jnp.where(ends.fresh, ends.count, jnp.maximum(ends.count - 1, 0))
        place = jnp.where(jnp.any(behind), jnp.argmax(behind), last)

        def put(values, value):
            shifted = jnp.where(index > place, jnp.roll(values, 1), values)
            return jnp.where(index == place, value, shifted)

        return Ends(
            left=put(ends.left, left), held=put(ends.held, self.tokens[row]),
            count=ends.count + 1, fresh=jnp.bool_(False),
        )

    def _collide(self, adder: Adder, ends: Ends, pages) -> Bool[Array, ""]:
        """Whether memory runs out at one of the ends, each giving back what it holds."""
        index = jnp.arange(ends.left.shape[0])
        still = ends.count - index
        free = adder.now - pages + rules.exclusive_sum(ends.held) - ends.left * still
        short = (pages > adder.now) | (
            ratios.rounded_up(self.ratio, adder.estimated) > adder.room - pages
        )
        return short | jnp.any((index < ends.count) & (free <= still))

    def _make_room(self, adder: Adder, row, total, hits: _Hits | None, pool: Pool | None):
        """The fewest running rows, least urgent and youngest first, that make the request fit."""
        rows, running = self.view.rows, self.view.running
        sign = jnp.where(self.knobs["schedule_low_priority_values_first"], -1, 1)
        gap = sign * (rows.priority[row] - rows.priority)
        weak = self.member & ~adder.victims
        weak &= gap > self.knobs["priority_scheduling_preemption_threshold"]
        weak = self.view.seated & weak[running]
        urgency = (sign * rows.priority)[running]
        first = jnp.lexsort((-rows.queue_order[running], urgency, ~weak))
        weak, victim = weak[first], running[first]
        count = jnp.arange(1, running.shape[0] + 1)
        if hits is None or pool is None:
            freed = jnp.cumsum(jnp.where(weak, self.view.freed[victim], 0))
        else:
            freed = _freed_in_turn(pool, victim, weak, hits)
        pages = self.block_size * freed
        estimated = adder.estimated - jnp.cumsum(jnp.where(weak, self.estimate[victim], 0))
        lacks = ratios.at_least(self.ratio, estimated, adder.room + pages - total)
        alone = self.knobs["check_memory"] & (adder.batch == count) & (adder.size == 0)
        enough = weak & (adder.seats + count > 0) & (~lacks | alone)
        made, most = jnp.any(enough), jnp.argmax(enough)
        goes = weak & (count <= most + 1)
        place = jnp.where(goes, victim, rows.request.shape[0])
        return replace(
            adder, room=adder.room + pages[most], now=adder.now + pages[most],
            estimated=estimated[most], seats=adder.seats + count[most],
            batch=adder.batch - count[most],
            victims=adder.victims.at[place].set(True, mode="drop"),
            order=adder.order.at[place].set(adder.gone + count - 1, mode="drop"),
            gone=adder.gone + count[most],
        ), made


def _freed_in_turn(pool: Pool, victim, weak: Bool[Array, "S"], hits: _Hits):
    """Blocks that come free as one victim after the other goes, less the hits among them."""
    blocks, held = pool.shared.blocks, pool.shared.held
    column = jnp.arange(blocks.tables.shape[1])
    found, counts = jnp.maximum(hits.found, 0), column < hits.count

    def go(refs, one):
        row, goes = one
        inside = goes & (column < held[row])
        block = jnp.where(inside, blocks.tables[row], refs.shape[0])
        after = refs.at[block].add(-1, mode="drop")
        freed = jnp.sum(inside & (after[jnp.where(inside, block, 0)] == 0))
        return after, (freed, jnp.sum(counts & (after[found] == 0)))

    _, (freed, idle) = lax.scan(go, blocks.refs, (victim, weak))
    return jnp.cumsum(freed) - idle


def empty_adder(view: View, **budgets) -> Adder:
    """Nobody admitted yet, nobody made room."""
    rows = view.rows.request.shape
    return Adder(
        size=jnp.int32(0), chunked=jnp.int32(NO_ROW), closed=jnp.int32(LimitedBy.QUEUE_EMPTY),
        victims=jnp.zeros(rows, bool), order=jnp.zeros(rows, jnp.int32), gone=jnp.int32(0),
        **budgets,
    )
