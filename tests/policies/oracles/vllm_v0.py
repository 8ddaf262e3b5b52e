"""vLLM V0's scheduler in plain Python, for requests of one sequence.

Written from the numbered steps of its description: three queues, and two modes.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class VllmV0(Scheduler):
    """Knobs by the system's own names. Time is the iteration's number; each lasts one second."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enable_chunked_prefill: bool = False
    preemption_mode: str = "recompute"
    scheduler_delay_factor: float = 0.0
    watermark: float = 0.01
    swapped: list[Sequence] = field(default_factory=list)
    line: list[int] = field(default_factory=list)  # all that wait, victims in front
    room: int = 0
    parked: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    now: int = 0
    latency: int = 0
    prompted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.room = self.swap_blocks
        self.kept = int(self.watermark * self.num_blocks)

    def arrive(self, id: int, prompt: int, max_tokens: int, priority: int = 0) -> str | None:
        self.arrived[id] = self.now
        word = super().arrive(id, prompt, max_tokens, priority)
        if word is None:
            self.line.append(id)
        return word

    def abort(self, id: int) -> bool:
        found = super().abort(id)
        self.line = [one for one in self.line if one != id]
        for sequence in self.swapped[:]:
            if sequence.id == id:
                self.swapped.remove(sequence)
                self.room += self.parked.pop(id)
                found = True
        return found

    @property
    def busy(self) -> bool:
        return bool(self.line or self.running)

    def schedule(self) -> dict:
        if self.prompted:
            self.latency = 1
        self.prompted = False
        self.left, self.words, self.victims = self.max_num_batched_tokens, [], []
        self.new, self.resumed, self.refused = [], [], []
        self.waited = len(self.running) > 0
        if self.enable_chunked_prefill:
            self._chunked()
        else:
            self._whole()
        self.now += 1
        place = {sequence.id: index for index, sequence in enumerate(self.running)}
        self.scheduled.sort(key=lambda one: place[one[0].id])
        words = [word for word in self.words if word != "queue_empty"]
        decided = self.decided(
            new=self.new, resumed=self.resumed, preempted=self.victims,
            limited_by=words[-1] if words else "queue_empty",
        )
        return decided | dict(
            waiting=len(self.line), queue=tuple(self.line), refused=tuple(self.refused)
        )

    def _whole(self) -> None:
        """Prompts, or else decodes and who comes back."""
        if self.swapped:
            self.words.append("freeze")
        else:
            self._admit()
        if self.new or self.resumed:
            return
        self._run(self.running)
        if not self.victims:
            self._swap_in()

    def _chunked(self) -> None:
        """Running, swapped, waiting; the next iteration finds the running ones in a new order."""
        self._run(self.running)
        stay, parked = self.running[:], self.swapped[:]
        if not self.victims:
            self._swap_in()
        back = [one for one in parked if one not in self.swapped]
        # Victims of this iteration wait for the next one.
        victims = [one for one in self.queue if one in self.victims]
        self.queue = self.queue[len(victims) :]
        self._admit()
        self.queue = victims + self.queue
        new = [one for one in self.running if one not in stay and one not in back]
        tokens = {one.id: count for one, count in self.scheduled}
        parts: list[list[Sequence]] = [[], [], [], []]
        for one in stay:
            before = one.computed - tokens.get(one.id, 0)
            if one.id not in tokens:
                parts[0].append(one)
            elif before >= max(one.prompt, one.tokens - 1):
                parts[1].append(one)
            else:
                parts[2 if one.computed == one.tokens else 3].append(one)
        unreached, decodes, ending, prompts = parts
        self.next_order = [*unreached, *back, *decodes, *ending, *prompts, *new]

    def finish(self, stop_after: dict[int, int]) -> dict:
        ended = super().finish(stop_after)
        if self.enable_chunked_prefill:
            self.running = [one for one in self.next_order if one in self.running]
        return ended

    def _run(self, line: list[Sequence]) -> None:
        """Running sequences in order; the last ones make room."""
        unvisited, swaps = line[:], self.preemption_mode == "swap"
        kept = []
        while unvisited and self.left > 0:
            sequence = unvisited.pop(0)
            tokens = min(sequence.tokens - sequence.computed, self.left)
            lacking = max(self.blocks_of(sequence.computed + tokens) - sequence.blocks, 0)
            while lacking > self.free:
                victim = unvisited.pop() if unvisited else sequence
                swaps = self._preempt(victim, swaps)
                if victim is sequence:
                    break
            else:
                self.take(sequence, lacking)
                self.run(sequence, tokens)
                self.left -= tokens
                kept.append(sequence)
        self.running = kept + unvisited

    def _preempt(self, victim: Sequence, swaps: bool) -> bool:
        """Swap it out if there is room, and if there was for those before it."""
        swaps = swaps and victim.blocks <= self.room
        self.victims.append(victim)
        self.line.insert(0, victim.id)
        if swaps:
            self.room -= victim.blocks
            self.parked[victim.id] = victim.blocks
            self.swapped.append(victim)
        else:
            victim.computed = 0
            self.queue.insert(0, victim)
        self.drop(victim)
        return swaps

    def _spared(self) -> int:
        return self.kept if self.running else 0

    def _fits(self, sequence: Sequence) -> str | None:
        """The word of what is lacking."""
        if len(self.running) >= self.max_num_seqs:
            return "seats"
        if self.left <= 0:
            return "budget"
        lacks = self.blocks_of(sequence.tokens)
        if lacks > self.free:
            return "blocks"
        if lacks + self._spared() > self.free:
            return "watermark"
        return None

    def _enter(self, sequence: Sequence, tokens: int) -> None:
        self.running.append(sequence)
        self.line.remove(sequence.id)
        (self.resumed if sequence.ran_before else self.new).append(sequence)
        sequence.ran_before = True
        self.take(sequence, self.blocks_of(sequence.tokens))
        self.run(sequence, tokens)
        self.left -= tokens

    def _swap_in(self) -> None:
        while self.swapped:
            head = self.swapped[0]
            if word := self._fits(head):
                self.words.append(word)
                return
            self.swapped.pop(0)
            self.room += self.parked.pop(head.id)
            self._enter(head, min(head.tokens - head.computed, self.left))

    def _admit(self) -> None:
        while self.queue:
            head = self.queue[0]
            patience = self.scheduler_delay_factor * self.latency
            early = self.waited and 0 < patience and self.now - self.arrived[head.id] <= patience
            fresh = not head.ran_before
            if fresh and not early and self.blocks_of(head.tokens) + self.kept > self.num_blocks:
                self.queue.pop(0)
                self.line.remove(head.id)
                self.refused.append((head.id, "never_fits"))
                continue
            word = self._fits(head)
            if word not in ("seats", "budget"):
                word = "wait_timer" if early else word
            if not word and not self.enable_chunked_prefill and head.tokens > self.left:
                word = "budget"
            if word:
                self.words.append(word)
                return
            self.queue.pop(0)
            self._enter(head, min(head.tokens, self.left))
            self.prompted = True


@st.composite
def cases(draw):
    """A V0 system with a workload, in either mode."""
    # There because it imports this module.
    from tests.policies.beside import LIMITS, MAX_LENGTH, Case, systems, workloads

    block_size, num_blocks, max_length = draw(systems())
    chunked = draw(st.booleans())
    seats = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 6, 6]))
    # Small pools, or nobody would ever be swapped out.
    num_blocks = min(num_blocks, draw(st.sampled_from([64, 32 // block_size, 24 // block_size])))
    least = seats
    if not chunked:
        max_length = draw(st.sampled_from([24, 24, MAX_LENGTH]))
        least = max_length
    watermark = draw(st.sampled_from([0.0, 0.01, 0.01, 0.1, 0.3]))
    knobs = dict(
        max_num_batched_tokens=draw(
            st.one_of(st.integers(least, min(least + 10, 64)), st.integers(least, 64))
        ),
        max_num_seqs=seats, enable_chunked_prefill=chunked,
        preemption_mode=draw(st.sampled_from(["recompute", "swap", "swap"])),
        scheduler_delay_factor=draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0, 6.0])),
        watermark=watermark,
    )
    swap_blocks = draw(st.sampled_from([0, num_blocks // 2, num_blocks, 3 * num_blocks]))
    # Who is refused makes room in the window only in the next iteration.
    workload = draw(workloads(block_size, max_length, LIMITS.rows))
    return Case(
        "vllm_v0", knobs, block_size, num_blocks, max_length, workload, swap_blocks=swap_blocks
    )
