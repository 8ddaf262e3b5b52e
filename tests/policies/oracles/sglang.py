"""SGLang's scheduler in plain Python: prefill first, one mid-prefill request, estimated reserve.

Written from the numbered steps of its description and the surprises seen in decisions recorded
from release 0.5.5. Lists are sorted in place as there; KV is counted in pages.
"""

from dataclasses import dataclass, field

from tests.policies.oracles.common import Scheduler, Sequence
from tests.policies.oracles.radix import Node, RadixTree

CLIP = 4096  # most output tokens that an estimate counts
IN_BATCH = 32  # tokens shared with another waiting request from which one of the two steps back
LPM_LONGEST_QUEUE = 128


@dataclass(eq=False)
class Member(Sequence):
    """A request; `outputs` are those whose results were processed, `computed` tokens have KV."""

    priority: int = 0
    entered: int = 0
    ids: list[int] | None = None  # prompt token ids, with the radix cache on
    prefix: int = 0  # tokens that need no computing in this round
    cached: int = 0  # of these, tokens that lie in the tree
    target: int = 0  # tokens with KV after this round
    node: Node | None = None
    partial: bool = False  # its last round did not finish its prefill
    emitted: int = 0  # outputs launched so far; ahead of `outputs` with the overlap loop
    over: bool = False  # its end was seen
    retracted: bool = False

    @property
    def extend(self) -> int:
        return self.target - self.prefix


@dataclass
class Sglang(Scheduler):
    """Knobs by the system's own names, and the carried state."""

    max_running_requests: int = 48
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_radix_cache: bool = True
    disable_overlap_schedule: bool = True
    ignore_eos: bool = False
    keep_finished: bool = False
    check_memory: bool = True
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    batch: list[Member] = field(default_factory=list)  # the running batch, finished ones included
    last: list[Member] = field(default_factory=list)  # members of the last step
    last_prefilled: bool = False
    chunked: Member | None = None
    full: bool = False
    kind: str = "idle"
    prefills: int = 0  # members of this step that prefill; they come first
    iteration: int = -1
    seen: list[Member] = field(default_factory=list)  # ends seen by the last `finish`
    unseen: list[tuple[Member, bool]] = field(default_factory=list)  # launched, not yet processed

    def __post_init__(self) -> None:
        super().__post_init__()
        self.initial = min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)
        self.least = min(self.initial * self.min_new_token_ratio_factor, 1.0)
        self.decay = (self.initial - self.least) / self.new_token_ratio_decay_steps
        self.ratio = self.initial
        self.tree = None if self.disable_radix_cache else RadixTree(self.block_size)

    # ---------------------------------------------------------------- the door

    def enter(self, id: int, prompt: int, max_tokens: int, priority=0, ids=None) -> None:
        """Queue a request without asking the door."""
        self.queue.append(
            Member(id, prompt, max_tokens, priority=priority, entered=self.iteration + 1, ids=ids)
        )

    # ---------------------------------------------------------------- memory

    @property
    def available(self) -> int:
        """Free tokens, and those that could be evicted."""
        return self.free * self.block_size + (self.tree.unlocked if self.tree else 0)

    def _evict_for(self, tokens: int) -> None:
        # The whole need, not the shortfall.
        if self.tree and self.free * self.block_size < tokens:
            self.free += self.tree.evict(tokens) // self.block_size

    def _grow(self, member: Member, tokens: int) -> None:
        pages = self.blocks_of(tokens) - self.blocks_of(member.computed)
        assert pages <= self.free, "out of memory"
        self.free -= pages
        member.computed = tokens

    def _text(self, member: Member, length: int) -> list[int]:
        made = [1_000_000 * (member.id + 1) + k for k in range(length - len(member.ids))]
        return (member.ids + made)[:length]

    def _into_tree(self, member: Member, length: int) -> None:
        """Pages that the tree has already are given back."""
        had = self.tree.insert(self._text(member, length))
        self.free += max(had - member.cached, 0) // self.block_size

    def _keep_prefix(self, member: Member, length: int) -> None:
        """What a round computed goes into the tree, and stays locked."""
        if self.tree:
            self._into_tree(member, length)
            node, member.cached = self.tree.match(self._text(member, length))
            self.tree.unlock(member.node)
            self.tree.lock(node)
            member.node = node
        member.prefix = length

    def _release(self, member: Member, insert: bool) -> None:
        pages = self.blocks_of(member.computed)
        if self.tree:
            if insert:
                self._into_tree(member, member.computed)
                whole = member.computed // self.block_size
                self.free += pages - whole
            else:
                self.free += pages - member.cached // self.block_size
            self.tree.unlock(member.node)
        else:
            self.free += pages
        member.computed = member.prefix = member.cached = 0
        member.partial = False

    # ---------------------------------------------------------------- one iteration

    def schedule(self) -> dict:
        self.iteration += 1
        self.scheduled, self.victims = [], []
        self._merge()
        self.limited_by = "queue_empty"
        new = self._prefill()
        if new is None:
            new = []
            self._decode()
        fresh = [member for member in new if not member.ran_before]
        again = [member for member in new if member.ran_before]
        for member in new:
            member.ran_before = True
        return self._decided(fresh, again)

    def _decided(self, fresh, again) -> dict:
        self.new = [member for member, _ in self.scheduled if member in fresh or member in again]
        return self.decided(
            new=fresh, resumed=again, preempted=self.victims, limited_by=self.limited_by
        )

    def _merge(self) -> None:
        """The last step's prefills join the running batch."""
        if self.chunked:
            self._keep_prefix(self.chunked, self.chunked.computed)
        if self.last_prefilled:
            stay = [m for m in self.last if not m.over and m is not self.chunked]
            if len(stay) < len(self.last):
                self.full = False
            if stay:
                if not self.batch:
                    # The last batch takes its place, flag and all.
                    self.full = False
                self.batch = self.batch + stay

    def _estimate(self, member: Member) -> int:
        return min(member.max_tokens - member.outputs, CLIP)

    def _prefill(self) -> list[Member] | None:
        """The requests that start here, or None if there is no prefill to run."""
        if not self.queue:
            if not self.chunked:
                return None
        elif self.full and not self.chunked:
            self.limited_by = "freeze"
            return None
        if len(self.batch) >= self.max_running_requests and not self.chunked:
            self.full = True
            self.limited_by = "seats"
            return None
        self._sort()
        decodes = len(self.batch) if self.enable_mixed_chunk else 0
        self.left_input = self.max_prefill_tokens - decodes
        self.left_chunk = None
        if self.chunked_prefill_size > 0:
            self.left_chunk = self.chunked_prefill_size - decodes
        self.charged = decodes + sum(self._estimate(m) * self.ratio for m in self.batch)
        self.charged_now = decodes
        self.states = None
        run: list[Member] = []
        if self.chunked:
            member = self.chunked
            member.target = member.tokens
            most = min(self.left_chunk, int(self.available - self.charged))
            truncated = member.extend > most
            member.target = member.prefix + min(member.extend, most)
            run.append(member)
            self._charge(member.extend, 0 if truncated else min(member.max_tokens, CLIP))
            self.chunked = member if truncated else None
        started = []
        for member in list(self.queue):
            if len(run) >= self.max_running_requests - len(self.batch):
                self.full = True
                self.limited_by = "seats"
            if self.full:
                if self.limited_by == "queue_empty":
                    self.limited_by = "freeze"
                break
            self._match(member)
            answer = self._add(member, run)
            if run and run[-1] is member:
                started.append(member)
                self.queue.remove(member)
            if answer == "no_token":
                self.full = True
            if answer != "continue":
                if self.queue:
                    self.limited_by = {"no_token": "blocks", "other": "budget"}[answer]
                break
        if not run:
            return None
        self._launch_prefill(run)
        return started

    def _match(self, member: Member) -> None:
        member.target = member.tokens
        if self.tree:
            member.node, member.cached = self.tree.match(self._text(member, member.tokens - 1))
        member.prefix = member.cached

    def _charge(self, extend: int, output: int) -> None:
        extend = self._whole_pages(extend)
        self.charged += extend + output
        self.charged_now += extend
        self.left_input -= extend
        if self.left_chunk is not None:
            self.left_chunk -= extend

    def _whole_pages(self, tokens: int) -> int:
        return self.blocks_of(tokens) * self.block_size

    def _add(self, member: Member, run: list[Member]) -> str:
        if self.ignore_eos and not self.tree:
            return self._add_ignoring_eos(member, run)
        total = member.extend + self._estimate(member)
        if total >= self.available - self.charged:
            return "no_token"
        pages = self._whole_pages(member.extend)
        if pages >= self.left_input and run:
            return "other"
        if self.tree:
            locked = self.tree.unlocked_above(member.node)
            if total >= self.available - locked - self.charged:
                return "no_token"
        if self.left_chunk is None or pages <= self.left_chunk:
            self._lock(member)
            run.append(member)
            self._charge(pages, min(member.max_tokens, CLIP))
        else:
            chunk = self.left_chunk // self.block_size * self.block_size
            if chunk <= 0:
                return "other"
            self._lock(member)
            self._start_chunk(member, chunk, run)
        return self._state()

    def _lock(self, member: Member) -> None:
        if self.tree:
            self.tree.lock(member.node)
            member.computed = member.cached

    def _start_chunk(self, member: Member, chunk: int, run: list[Member]) -> None:
        assert self.chunked is None
        member.target = member.prefix + chunk
        run.append(member)
        self.chunked = member
        self._charge(chunk, 0)

    def _state(self) -> str:
        if self.available - self.charged <= 0 or self.available - self.charged_now <= 0:
            return "no_token"
        if self.left_input <= 0 or (self.left_chunk is not None and self.left_chunk <= 0):
            return "other"
        return "continue"

    def _add_ignoring_eos(self, member: Member, run: list[Member]) -> str:
        """Every end is known: follow the running set from one end to the next."""
        pages = self._whole_pages(member.extend)
        free = self.available - self.charged_now
        if pages > min(free, self.available - self.charged):
            return "no_token"

        def state(one: Member) -> tuple[int, int]:
            return one.max_tokens - one.outputs, one.tokens

        if self.states is None:
            everyone = [state(one) for one in [member, *self.batch, *run]]
            self.states = sorted(
                (one for one in everyone if one[0] > 0), key=lambda one: one[0]
            )
        elif state(member)[0] > 0:
            place = 0
            for place, one in enumerate(self.states):
                if state(member)[0] <= one[0]:
                    break
            # With the most left it lands before the last one.
            self.states.insert(place, state(member))
        freed = 0
        for index, (left, held) in enumerate(self.states):
            still = len(self.states) - index
            if free - pages + freed - left * still <= still:
                return "no_token"
            freed += held
        if self.left_chunk is None or pages <= self.left_chunk:
            run.append(member)
            self._charge(pages, min(member.max_tokens, CLIP))
        else:
            if self.left_chunk == 0:
                return "other"
            self._start_chunk(member, self.left_chunk, run)
        return self._state()

    def _launch_prefill(self, run: list[Member]) -> None:
        extend = sum(member.extend for member in run)
        self._evict_for(extend if self.block_size == 1 else extend + len(run) * self.block_size)
        for member in run:
            self.scheduled.append((member, member.extend))
            self._grow(member, member.target)
            member.retracted = False
            member.partial = member is self.chunked
        self.kind, self.prefills = "prefill", len(run)
        decodes: list[Member] = []
        if self.enable_mixed_chunk and self.batch:
            decodes = [member for member in self.batch if not member.over]
            if decodes:
                self._launch_decodes(decodes)
                self.kind = "mixed"
            self.batch = []
        self.last, self.last_prefilled = run + decodes, True

    def _launch_decodes(self, members: list[Member]) -> None:
        self._evict_for(len(members) * self.block_size)
        for member in members:
            self.scheduled.append((member, 1))
            self._grow(member, member.computed + 1)

    # ---------------------------------------------------------------- decode

    def _decode(self) -> None:
        self.kind, self.last, self.last_prefilled, self.prefills = "idle", [], False, 0
        before = len(self.batch)
        self.batch = [member for member in self.batch if not member.over]
        if not self.batch:
            if before:
                self.full = False
            return
        if self._decodes_fit(self.batch):
            self.ratio = max(self.ratio - self.decay, self.least)
        else:
            self._retract()
        if len(self.batch) < before:
            self.full = False
        self._launch_decodes(self.batch)
        self.kind, self.last = "decode", list(self.batch)

    def _decodes_fit(self, members: list[Member]) -> bool:
        crossing = sum(1 for member in members if member.computed % self.block_size == 0)
        self._evict_for(crossing * self.block_size)
        return crossing <= self.free

    def _retract(self) -> None:
        order = sorted(
            self.batch, key=lambda one: (one.outputs, -one.prompt), reverse=True
        )
        first = True
        while first or not self._decodes_fit(order):
            if len(order) == 1:
                break
            first = False
            victim = order.pop()
            self._release(victim, insert=False)
            self._evict_for(len(order) * self.retract_decode_steps)
            victim.retracted = True
            victim.entered = self.iteration
            self.victims.append(victim)
            self.queue.append(victim)
        if self.victims:
            self.batch = order
        made = sum(one.outputs for one in self.batch)
        most = sum(one.max_tokens for one in self.batch)
        steps = self.retract_decode_steps * len(self.batch)
        self.ratio = min(1.0, (made + steps) / (most + 1))

    # ---------------------------------------------------------------- order

    def _sort(self) -> None:
        policy = self.schedule_policy
        if policy in ("lpm", "dfs-weight") and not self.tree:
            policy = "fcfs"
        if policy == "lof":
            self.queue.sort(key=lambda one: -one.max_tokens)
        elif policy == "lpm" and len(self.queue) <= LPM_LONGEST_QUEUE:
            back = self._sharing()
            self.queue.sort(key=lambda one: (one in back, 0 if one in back else -one.prefix))

    def _sharing(self) -> list[Member]:
        """Requests that wait for another one to fill the cache for them; matches all prefixes."""
        back = []
        waiting = RadixTree(1)
        for member in self.queue:
            # The whole text here; the last token is left out only when it is admitted.
            text = self._text(member, member.tokens)
            member.node, member.prefix = self.tree.match(text)
            if member.prefix <= IN_BATCH:
                if waiting.match(text)[1] >= IN_BATCH:
                    back.append(member)
                else:
                    waiting.insert(text)
        return back

    # ---------------------------------------------------------------- results

    def finish(self, stop_after: dict[int, int]) -> dict:
        launched = [
            (member, member.partial, index < self.prefills, member.computed)
            for index, (member, _) in enumerate(self.scheduled)
        ]
        process = launched
        if not self.disable_overlap_schedule:
            process, self.unseen = self.unseen, launched
        self.seen = []
        for member, partial, prefilled, length in process:
            if member.over or member.retracted or partial:
                continue
            member.outputs += 1
            if member.outputs >= member.max_tokens:
                member.over = True
                self.seen.append(member)
                self._release(member, insert=True)
            elif prefilled:
                self._keep_prefix(member, length)
        if not launched and not process:
            self.ratio = self.initial
        return {}
