"""SGLang's scheduler in plain Python: prefill first, one mid-prefill request, estimated reserve.

Written from the numbered steps of its description and the surprises seen in decisions recorded
from release 0.5.5. Lists are sorted in place as there.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.policies.oracles.radix import RadixTree
from tests.policies.oracles.sglang_memory import Member, Memory

UNIT = 1 << 30  # the ratio is counted in parts of this
CLIP = 4096  # most output tokens that an estimate counts
IN_BATCH = 32  # tokens shared with another waiting request from which one of the two steps back
LPM_LONGEST_QUEUE = 128
WORDS = {"no_token": "blocks", "other": "budget"}


@dataclass
class Sglang(Memory):
    """Knobs by the system's own names, and the carried state."""

    max_running_requests: int = 256
    chunked_prefill_size: int = 4096
    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_overlap_schedule: bool = False
    ignore_eos: bool = False
    enable_priority_scheduling: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_low_priority_values_first: bool = False
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    keep_finished: bool = False
    check_memory: bool = True
    batch: list[Member] = field(default_factory=list)  # the running batch, finished ones included
    last: list[Member] = field(default_factory=list)  # members of the last step
    last_prefilled: bool = False
    chunked: Member | None = None
    full: bool = False
    kind: str = "idle"
    prefills: int = 0  # members of this step that prefill; they come first
    iteration: int = -1
    entries: int = 0
    victims: list[Member] = field(default_factory=list)
    seen: list[Member] = field(default_factory=list)  # ends seen by the last `finish`
    unseen: list[tuple] = field(default_factory=list)  # launched, not yet processed
    limited_by: str = "queue_empty"

    def __post_init__(self) -> None:
        super().__post_init__()
        initial = min(self.init_new_token_ratio * self.schedule_conservativeness, 1.0)
        self.initial = self.ratio = round(initial * UNIT)
        self.least = round(initial * self.min_new_token_ratio_factor * UNIT)
        self.rest = 0  # of the decay, in parts of a step

    @property
    def reserves_output(self) -> bool:
        # The overlap loop computes one token for nothing, and that needs KV.
        return not self.disable_overlap_schedule

    def arrive(self, id: int, prompt: int, max_tokens: int, priority: int = 0) -> str | None:
        word = super().arrive(id, prompt, max_tokens, priority)
        if word is None:
            self.enter(id, prompt, self.queue.pop().max_tokens, priority)
        return word

    def enter(self, id: int, prompt: int, max_tokens: int, priority=0, ids=None) -> None:
        """Queue a request without asking the door."""
        member = Member(id, prompt, max_tokens, priority=priority, ids=ids)
        self._enqueue(member)

    def _enqueue(self, member: Member) -> None:
        member.place = self.entries
        self.entries += 1
        self.queue.append(member)

    def abort(self, id: int) -> bool:
        for member in [*self.queue, *self.running]:
            if member.id == id:
                member.over = True
                if member in self.queue:
                    self.queue.remove(member)
                else:
                    self.running.remove(member)
                    self.release(member, insert=False)
                if member is self.chunked:
                    self.chunked = None
                return True
        return False

    # ---------------------------------------------------------------- one iteration

    def schedule(self) -> dict:
        self.iteration += 1
        self.scheduled, self.victims, self.limited_by = [], [], "queue_empty"
        self._merge()
        started = self._prefill()
        if started is None:
            started = []
            self._decode()
        fresh = [member for member in started if not member.ran_before]
        again = [member for member in started if member.ran_before]
        self.new = started
        for member in started:
            member.ran_before = True
        decided = self.decided(
            new=fresh, resumed=again, preempted=self.victims, limited_by=self.limited_by
        )
        # By entry into the queue, whatever the policy sorts by; decodes before prefills.
        queue = sorted(self.queue, key=lambda one: one.place)
        return decided | dict(
            queue=tuple(one.id for one in queue),
            scheduled=tuple((one.id, tokens) for one, tokens in self._in_run_order() if tokens),
        )

    def _in_run_order(self) -> list[tuple[Member, int]]:
        return self.scheduled[self.prefills :] + self.scheduled[: self.prefills]

    def _merge(self) -> None:
        """The last step's prefills join the running batch."""
        if self.chunked:
            self.keep_prefix(self.chunked, self.chunked.computed)
        if not self.keep_finished:
            stay = [member for member in self.batch if not member.over]
            if len(stay) < len(self.batch):
                self.full = False
            self.batch = stay
        if self.last_prefilled:
            stay = [one for one in self.last if not one.over and one is not self.chunked]
            if len(stay) < len(self.last):
                self.full = False
            if stay and not self.batch:
                # The last batch takes the place of the running one, flag and all.
                self.full = False
            self.batch = self.batch + stay

    def _estimate(self, member: Member) -> int:
        return min(member.max_tokens - member.outputs, CLIP)

    def _crossing(self, members: list[Member]) -> int:
        """Pages that the next token of each needs."""
        return sum(1 for one in members if not one.over and one.computed % self.block_size == 0)

    # What is left of the memory is whole tokens minus an estimate with a fraction. The ratio is
    # rounded to parts, so a product within their error of a whole number counts as that number.

    def _at_least(self, tokens: int) -> bool:
        """Whether the estimate of what runs, times the ratio, is at least that many tokens."""
        return (self.estimated * (self.ratio + 2)) // UNIT >= tokens

    def _rounded_up(self) -> int:
        return -((-self.estimated * max(self.ratio - 2, 0)) // UNIT)

    # ---------------------------------------------------------------- prefill

    def _prefill(self) -> list[Member] | None:
        """The requests that start here, or None if there is no prefill to run."""
        if self.enable_priority_scheduling:
            self.full = False
        if not self.queue and not self.chunked:
            return None
        if self.full and not self.chunked:
            self.limited_by = "freeze"
            return None
        seats = self.max_running_requests - len(self.batch)
        if seats <= 0 and not self.chunked and not self.enable_priority_scheduling:
            self.full = True
            self.limited_by = "seats"
            return None
        crossing = self._crossing(self.batch) if self.enable_mixed_chunk else 0
        if self.check_memory and crossing * self.block_size > self.available:
            return self._stall()
        self._sort()
        decodes = len(self.batch) if self.enable_mixed_chunk else 0
        self.left_input = self.max_prefill_tokens - decodes
        size = self.chunked_prefill_size
        size = min(size, self.iteration_tokens) if size > 0 else self.iteration_tokens
        self.left_chunk = size - decodes
        self.charged = decodes
        if self.check_memory:
            self.charged = max(decodes, crossing * self.block_size)
        self.charged_now = self.charged
        self.estimated = sum(self._estimate(one) for one in self.batch if not one.over)
        self.states = None
        run: list[Member] = []
        if self.chunked and not self._continue_chunk(run):
            return self._stall()
        started = self._admit(run)
        if not run:
            return None
        self._launch_prefill(run)
        return started

    def _stall(self) -> None:
        if self.queue:
            self.limited_by = "blocks"

    def _continue_chunk(self, run: list[Member]) -> bool:
        member = self.chunked
        member.target = member.tokens
        most = self.available - self.charged - self._rounded_up()
        if self.check_memory:
            # The rest of its last page costs nothing.
            most = max(most, -member.prefix % self.block_size)
        most = min(self.left_chunk, most)
        if self.check_memory and most <= 0:
            return False
        truncated = member.extend > most
        member.target = member.prefix + max(min(member.extend, most), 0)
        run.append(member)
        self._charge(member.extend, 0 if truncated else min(member.max_tokens, CLIP))
        self.chunked = member if truncated else None
        return True

    def _admit(self, run: list[Member]) -> list[Member]:
        started = []
        waiting = list(self.queue)
        for member in waiting:
            if self.full:
                self.limited_by = "freeze"
                return started
            answer = "seats"
            if self.enable_priority_scheduling or not self._seats_out(run):
                # Only now: a match changes what the tree evicts first.
                self.match(member)
                answer = self._answer(member, run)
            if answer in ("seats", "no_token") and self.enable_priority_scheduling:
                if self._make_room(member, run):
                    answer = "takes"
            if answer != "takes":
                self.full = self.full or answer != "other"
                self.limited_by = WORDS.get(answer, answer)
                return started
            self._add(member, run)
            started.append(member)
            self.queue.remove(member)
            answer = self._state()
            if answer == "no_token":
                self.full = True
            if answer != "continue":
                if member is not waiting[-1]:
                    self.limited_by = WORDS[answer]
                return started
        return started

    def _charge(self, extend: int, output: int) -> None:
        extend = self.whole_pages(extend)
        self.charged += extend + output
        self.charged_now += extend
        self.left_input -= extend
        self.left_chunk -= extend

    def _seats_out(self, run: list[Member]) -> bool:
        return len(run) >= self.max_running_requests - len(self.batch)

    def _answer(self, member: Member, run: list[Member]) -> str:
        if self._seats_out(run):
            return "seats"
        if self._lacks_memory(member, run):
            return "no_token"
        return self._lacks_budget(member, run)

    def _known_ends(self) -> bool:
        return self.ignore_eos and not self.tree

    def _lacks_memory(self, member: Member, run: list[Member]) -> bool:
        if self._known_ends():
            lacks = self._ends_collide(member, run)
        else:
            total = member.extend + self._estimate(member)
            locked = self.tree.unlocked_above(member.node) if self.tree else 0
            lacks = self._at_least(self.available - locked - self.charged - total)
        # Alone it runs whatever the estimate says, or it would wait for ever.
        return lacks and not (self.check_memory and not self.batch and not run)

    def _lacks_budget(self, member: Member, run: list[Member]) -> str:
        pages = self.whole_pages(member.extend)
        if not self._known_ends() and pages >= self.left_input and run:
            return "other"
        if not self._whole(member) and self._chunk() <= 0:
            return "other"
        return "takes"

    def _whole(self, member: Member) -> bool:
        # A chunk that is no whole number of pages need not be cut for the page's sake.
        least = member.extend if self._known_ends() else self.whole_pages(member.extend)
        return least <= self.left_chunk

    def _chunk(self) -> int:
        if self._known_ends():
            return self.left_chunk
        return self.left_chunk // self.block_size * self.block_size

    def _add(self, member: Member, run: list[Member]) -> None:
        self.lock(member)
        run.append(member)
        if self._whole(member):
            self._charge(member.extend, min(member.max_tokens, CLIP))
        else:
            assert self.chunked is None
            self.chunked = member
            member.target = member.prefix + self._chunk()
            self._charge(member.extend, 0)

    def _state(self) -> str:
        memory = self.available - self.charged
        if self._at_least(memory) or self.available - self.charged_now <= 0:
            return "no_token"
        return "other" if self.left_input <= 0 or self.left_chunk <= 0 else "continue"

    def _ends_collide(self, member: Member, run: list[Member]) -> bool:
        """Every end is known: follow the running set from one end to the next."""
        pages = self.whole_pages(member.extend)
        free = self.available - self.charged_now
        if pages > free or self._rounded_up() > self.available - self.charged - pages:
            return True

        def state(one: Member) -> tuple[int, int]:
            return one.max_tokens - one.outputs, one.tokens

        if self.states is None:
            everyone = [state(one) for one in [member, *self.batch, *run] if not one.over]
            self.states = sorted((one for one in everyone if one[0] > 0), key=lambda one: one[0])
        else:
            left = state(member)[0]
            # With the most left it lands before the last one.
            end = max(len(self.states) - 1, 0)
            place = next((at for at, one in enumerate(self.states) if left <= one[0]), end)
            self.states.insert(place, state(member))
        freed = 0
        for index, (left, held) in enumerate(self.states):
            still = len(self.states) - index
            if free - pages + freed - left * still <= still:
                return True
            freed += held
        return False

    def _make_room(self, member: Member, run: list[Member]) -> bool:
        """Retract the least urgent, youngest first, until it fits; nobody if it never does."""
        sign = -1 if self.schedule_low_priority_values_first else 1
        if self._lacks_budget(member, run) == "other":
            return False
        gap = self.priority_scheduling_preemption_threshold
        order = sorted(
            (
                one for one in self.batch
                if not one.over and sign * (member.priority - one.priority) > gap
            ),
            key=lambda one: (sign * one.priority, -one.place),
        )
        batch, free, estimated = list(self.batch), self.free, self.estimated
        for count, victim in enumerate(order, 1):
            self.batch.remove(victim)
            self.free += self.blocks_of(victim.computed)
            self.estimated -= self._estimate(victim)
            if self._answer(member, run) == "takes":
                self.free = free
                for one in order[:count]:
                    self._retract(one)
                return True
        self.batch, self.free, self.estimated = batch, free, estimated
        return False

    def _launch_prefill(self, run: list[Member]) -> None:
        extend = sum(member.extend for member in run)
        self.evict_for(extend if self.block_size == 1 else extend + len(run) * self.block_size)
        for member in run:
            self.scheduled.append((member, member.extend))
            self.grow(member, member.target)
            member.retracted = False
            member.partial = member is self.chunked
            if member not in self.running:
                self.running.append(member)
        self.kind, self.prefills = "prefill", len(run)
        decodes: list[Member] = []
        if self.enable_mixed_chunk:
            decodes = [member for member in self.batch if not member.over]
            if decodes:
                self._launch_decodes(decodes)
                self.kind = "mixed"
            self.batch = []
        self.last, self.last_prefilled = run + decodes, True

    def _launch_decodes(self, members: list[Member]) -> None:
        self.evict_for(len(members) * self.block_size)
        for member in members:
            self.scheduled.append((member, 1))
            self.grow(member, member.computed + 1)

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
            self._decay()
        else:
            self._retract_some()
        if len(self.batch) < before:
            self.full = False
        self._launch_decodes(self.batch)
        self.kind, self.last = "decode", list(self.batch)

    def _decay(self) -> None:
        steps = self.new_token_ratio_decay_steps
        whole, rest = divmod(self.initial - self.least, steps)
        self.rest += rest
        self.ratio -= whole + self.rest // steps
        self.rest %= steps
        if self.ratio <= self.least:
            self.ratio, self.rest = self.least, 0

    def _decodes_fit(self, members: list[Member]) -> bool:
        crossing = self._crossing(members)
        self.evict_for(crossing * self.block_size)
        return crossing <= self.free

    def _retract(self, victim: Member) -> None:
        self.release(victim, insert=False)
        victim.retracted = True
        victim.launched = victim.outputs
        self.running.remove(victim)
        self.victims.append(victim)
        self._enqueue(victim)

    def _retract_some(self) -> None:
        order = sorted(self.batch, key=lambda one: (one.outputs, -one.prompt), reverse=True)
        while len(order) > 1 and (len(order) == len(self.batch) or not self._decodes_fit(order)):
            self._retract(order.pop())
            self.evict_for(len(order) * self.retract_decode_steps)
        if not self._decodes_fit(order):
            # The last one must go on: what is half computed gives way.
            self._retract(self.chunked)
            self.chunked = None
        self.batch = order
        made = sum(one.outputs for one in order) + self.retract_decode_steps * len(order)
        most = sum(one.max_tokens for one in order) + 1
        self.ratio, self.rest = min(made * UNIT // most, UNIT), 0

    # ---------------------------------------------------------------- order

    def _sort(self) -> None:
        policy = self.schedule_policy
        if policy == "random":
            self.queue.sort(key=lambda one: (self._shuffled(one.id), one.place))
        elif policy == "lof":
            self.queue.sort(key=lambda one: -one.max_tokens)
        elif policy == "lpm" and self.tree and len(self.queue) <= LPM_LONGEST_QUEUE:
            back = self._sharing()
            self.queue.sort(key=lambda one: (one in back, 0 if one in back else -one.prefix))
        elif policy == "dfs-weight" and self.tree:
            self._sharing()
            self.queue = self._depth_first(self.tree.root)
        if self.enable_priority_scheduling:
            sign = 1 if self.schedule_low_priority_values_first else -1
            self.queue.sort(key=lambda one: sign * one.priority)

    def _shuffled(self, id: int) -> int:
        """A number that looks random, by the iteration and the request."""
        number = (id * 0x9E3779B1 + self.iteration * 0x85EBCA77) % 2**32
        for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
            number = (number ^ number >> shift) * factor % 2**32
        return number >> 1

    def _sharing(self) -> list[Member]:
        """Requests that wait for another one to fill the cache for them; matches all prefixes."""
        back = []
        waiting = RadixTree(1)
        for member in self.queue:
            # The whole text here; the last token is left out only when it is admitted.
            text = self.text(member, member.tokens)
            member.node, member.prefix = self.tree.match(text)
            if member.prefix <= IN_BATCH:
                if waiting.match(text)[1] >= IN_BATCH:
                    back.append(member)
                else:
                    waiting.insert(text)
        return back

    def _depth_first(self, node) -> list[Member]:
        """Subtrees with the most waiting requests first, a node's own requests after them."""
        below = [self._depth_first(child) for child in node.children.values()]
        below.sort(key=lambda members: -len(members))
        own = [member for member in self.queue if member.node is node]
        return [member for members in below for member in members] + own

    # ---------------------------------------------------------------- results

    def finish(self, stop_after: dict[int, int]) -> dict:
        """One token of each is computed here; with the overlap loop it is seen one step later."""
        ended = []
        for member, _ in self._in_run_order():
            if not member.partial:
                member.launched += 1
                if member.launched > member.emitted and not member.ended:
                    member.emitted = member.launched
                    reason = self._end(member, member.emitted, stop_after)
                    if reason:
                        member.ended = True
                        ended.append((member, reason))
        launched = [
            (member, member.partial, index < self.prefills, member.computed)
            for index, (member, _) in enumerate(self.scheduled)
        ]
        process = launched
        if not self.disable_overlap_schedule:
            process, self.unseen = self.unseen, launched
        self.seen = []
        for member, partial, prefilled, length in process:
            if not (member.over or member.retracted or partial):
                self._process(member, prefilled, length, stop_after)
        # A request that ended just before its retraction needs no second run.
        self.queue[:] = [member for member in self.queue if not member.ended]
        if not launched and not process:
            self.ratio, self.rest = self.initial, 0
        return dict(
            finished=tuple(member.id for member, _ in ended),
            finish_reasons=tuple(reason for _, reason in ended),
        )

    def _end(self, member: Member, outputs: int, stop_after: dict[int, int]) -> str | None:
        if outputs == stop_after.get(member.id):
            return "stop"
        long = member.prompt + outputs >= self.max_length
        return "length" if outputs >= member.max_tokens or long else None

    def _process(self, member: Member, prefilled: bool, length: int, stop_after) -> None:
        member.outputs += 1
        if self._end(member, member.outputs, stop_after):
            member.over = True
            self.seen.append(member)
            self.running.remove(member)
            self.release(member, insert=True)
        elif prefilled:
            self.keep_prefix(member, length)


@st.composite
def cases(draw):
    """An SGLang system with a workload, both loops; the faults that never end are left out."""
    from tests.policies import beside

    numbers = block_size, _, max_length = draw(beside.systems())
    chunks = [size for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64) if size % block_size == 0]
    order = draw(st.sampled_from(["fcfs", "fcfs", "lpm", "lof", "random"]))
    priority = order in ("fcfs", "lof") and draw(st.booleans())
    knobs = dict(
        max_running_requests=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 6])),
        chunked_prefill_size=draw(st.sampled_from([-1, *chunks])),
        max_prefill_tokens=draw(st.sampled_from([4, 8, 16, 32, 16384, 16384])),
        schedule_policy=order, schedule_conservativeness=draw(st.sampled_from([0.05, 0.3, 1.0])),
        enable_mixed_chunk=draw(st.booleans()), disable_overlap_schedule=draw(st.booleans()),
        ignore_eos=not priority and draw(st.sampled_from([False, False, True])),
        enable_priority_scheduling=priority,
        priority_scheduling_preemption_threshold=draw(st.sampled_from([0, 0, 1])),
        schedule_low_priority_values_first=draw(st.booleans()),
        init_new_token_ratio=draw(st.sampled_from([0.7, 0.3])),
        min_new_token_ratio_factor=draw(st.sampled_from([0.14, 0.0, 1.0])),
        new_token_ratio_decay_steps=draw(st.sampled_from([3, 20, 600])),
        retract_decode_steps=draw(st.sampled_from([0, 3, 20])),
        keep_finished=draw(st.booleans()),
    )
    # A retraction goes behind all that wait, so nobody may wait behind the window.
    most = beside.LIMITS.rows
    return beside.Case(
        "sglang", knobs, *numbers, draw(beside.workloads(block_size, max_length, most))
    )
