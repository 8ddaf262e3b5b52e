"""What the oracles share: a request, the door, and one iteration around a system's own rules.

Written from the descriptions of the systems with lists and loops, sharing nothing with the array
code: no key, no prefix sum, no block but a count.
"""

from dataclasses import dataclass, field


@dataclass
class Sequence:
    """A request inside the system."""

    id: int
    prompt: int
    max_tokens: int
    outputs: int = 0
    priority: int = 0
    deadline: int | None = None
    computed: int = 0
    blocks: int = 0
    ran_before: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt + self.outputs


@dataclass
class Scheduler:
    """One system: `arrive` and `abort`, then `schedule`, then `finish`; subclasses have the rules.

    `schedule` returns what was decided as a dictionary with the names of an iteration record.
    """

    block_size: int
    num_blocks: int
    max_length: int
    iteration_tokens: int
    swap_blocks: int = 0
    queue: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)
    free: int = 0

    reserves_output = False
    whole_prompts = False

    def __post_init__(self) -> None:
        self.free = self.num_blocks

    @property
    def busy(self) -> bool:
        """Whether any request is inside."""
        return bool(self.queue or self.running)

    def blocks_of(self, tokens: int) -> int:
        full, rest = divmod(tokens, self.block_size)
        return full + (1 if rest else 0)

    def slots(self, prompt: int, output: int) -> int:
        """KV slots from the first iteration to the last, for those with a `reservation`."""
        power = 1
        while power < output:
            power *= 2
        wanted = {"oracle": prompt + output, "pow2": prompt + power, "max": self.max_length}
        return min(wanted[self.reservation], self.max_length, self.num_blocks * self.block_size)

    def arrive(
        self, id: int, prompt: int, max_tokens: int, priority: int = 0, deadline: int | None = None
    ) -> str | None:
        """The word of the refusal, or None if the request joined the queue."""
        if prompt < 1:
            return "empty_prompt"
        if prompt >= self.max_length:
            return "prompt_too_long"
        only_one = max_tokens == 1 or prompt + 1 == self.max_length
        must_hold = prompt if only_one and not self.reserves_output else prompt + 1
        if self.blocks_of(must_hold) > self.num_blocks:
            return "never_fits"
        if self.whole_prompts and prompt > self.iteration_tokens:
            return "prompt_exceeds_iteration"
        most = 0
        while prompt + most < self.max_length and self._alone(prompt, most + 1):
            most += 1
        outputs = min(max_tokens, most) if max_tokens > 0 else most
        self.queue.append(Sequence(id, prompt, outputs, priority=priority, deadline=deadline))
        return None

    def _alone(self, prompt: int, outputs: int) -> bool:
        """Whether that many outputs fit an empty pool; the last token's KV is never stored."""
        stored = prompt + outputs if self.reserves_output else prompt + outputs - 1
        return self.blocks_of(stored) <= self.num_blocks

    def abort(self, id: int) -> bool:
        """Whether there was such a request."""
        for place in (self.queue, self.running):
            for sequence in place:
                if sequence.id == id:
                    place.remove(sequence)
                    self.free += sequence.blocks
                    return True
        return False

    def take(self, sequence: Sequence, blocks: int) -> None:
        """Give the sequence blocks of the pool."""
        assert 0 <= blocks <= self.free
        sequence.blocks += blocks
        self.free -= blocks

    def drop(self, sequence: Sequence) -> None:
        """Return all blocks of the sequence to the pool."""
        self.free += sequence.blocks
        sequence.blocks = 0

    def run(self, sequence: Sequence, tokens: int) -> None:
        """Compute that many tokens in this iteration."""
        sequence.computed += tokens
        self.scheduled.append((sequence, tokens))

    def decided(self, *, new, resumed=(), preempted=(), limited_by, extra_tokens=0) -> dict:
        """The iteration as decided, by the names of an iteration record."""
        return dict(
            scheduled=tuple((sequence.id, tokens) for sequence, tokens in self.scheduled),
            new=tuple(sequence.id for sequence in new),
            resumed=tuple(sequence.id for sequence in resumed),
            preempted=tuple(sequence.id for sequence in preempted),
            free_blocks=self.free, waiting=len(self.queue), running=len(self.running),
            queue=tuple(sequence.id for sequence in self.queue), limited_by=limited_by,
            extra_tokens=extra_tokens,
        )

    def finish(self, stop_after: dict[int, int]) -> dict:
        """Hand out the tokens of the iteration; whoever is done leaves and frees its blocks."""
        ended = []
        for sequence, _ in self.scheduled:
            if sequence.computed < sequence.tokens:
                continue
            sequence.outputs += 1
            if sequence.outputs == stop_after[sequence.id]:
                ended.append((sequence, "stop"))
            elif sequence.outputs >= sequence.max_tokens or sequence.tokens >= self.max_length:
                ended.append((sequence, "length"))
        for sequence, _ in ended:
            self.drop(sequence)
            self.running.remove(sequence)
        self.scheduled = []
        return dict(
            finished=tuple(sequence.id for sequence, _ in ended),
            finish_reasons=tuple(reason for _, reason in ended),
        )
