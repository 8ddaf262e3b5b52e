"""SGLang's scheduler in plain Python: prefill first, one mid-prefill request, estimated reserve.

Written from the numbered steps of its description and the surprises seen in decisions recorded
from release 0.5.5. Lists are sorted in place as there.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.policies.oracles.sglang_admission import CLIP, UNIT, Admission
from tests.policies.oracles.sglang_memory import Member

WORDS = {"no_token": "blocks", "other": "budget"}


@dataclass
class Sglang(Admission):
    """The iteration: merge, prefill or decode, and what becomes of the results."""

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

    def arrive(self, id, prompt, max_tokens, priority=0, token_ids=()) -> str | None:
        word = super().arrive(id, prompt, max_tokens, priority)
        if word is None:
            self.enter(id, prompt, self.queue.pop().max_tokens, priority, list(token_ids))
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
                    self.release(member, insert=True)
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
        # By entry into the queue, unless the order depends on what the cache held before.
        queue = self.queue
        if not self.tree or self.schedule_policy not in ("lpm", "dfs-weight"):
            queue = sorted(self.queue, key=lambda one: one.place)
        # Decodes before prefills.
        return decided | dict(
            free_blocks=self.available // self.block_size,
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
