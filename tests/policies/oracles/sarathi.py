"""The five schedulers of the Sarathi-Serve repository in plain Python, sound or with their faults.

Written from the numbered steps of their description and the surprises seen in recorded decisions.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.policies.oracles.common import Scheduler, Sequence

SCHEDULERS = ("sarathi", "simple_chunking", "vllm", "orca", "faster_transformer")


class OriginalRaises(Exception):
    """The original dies in this iteration; what it would decide next is unknown."""

    def __init__(self, iteration: int) -> None:
        super().__init__(iteration)
        self.iteration = iteration


@dataclass
class Sarathi(Scheduler):
    """Knobs by the system's own names; `turn` is whose turn it is under simple chunking."""

    scheduler: str = "sarathi"
    chunk_size: int = 512
    max_num_seqs: int = 128
    max_batched_tokens: int = 0
    max_model_len: int = 0
    enable_dynamic_chunking_schedule: bool = False
    low_chunk_size: int = 0
    high_chunk_size: int = 0
    chunk_schedule_max_tokens: int = 0
    chunk_schedule_stages: int = 0
    watermark: float = 0.01
    faithful: bool = False
    turn: str = "prefill"
    iteration: int = -1
    waited: bool = False
    used: int = 0
    new: list[Sequence] = field(default_factory=list)
    victims: list[Sequence] = field(default_factory=list)
    not_reset: list[Sequence] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    limited_by: str = "queue_empty"

    @property
    def whole_prompts(self) -> bool:
        return self.scheduler not in ("sarathi", "simple_chunking")

    @property
    def reserves_output(self) -> bool:
        return self.scheduler in ("orca", "faster_transformer")

    @property
    def longest(self) -> int:
        return self.max_model_len or self.max_length

    @property
    def budget(self) -> int:
        """Most tokens of an iteration of whole prompts."""
        if self.scheduler != "vllm":
            return self.iteration_tokens
        asked = self.max_batched_tokens or self.longest
        return min(asked, self.longest, self.iteration_tokens)

    def schedule(self) -> dict:
        self.used, self.new, self.victims, self.refused = 0, [], [], []
        self.limited_by = "queue_empty"
        self.iteration += 1
        self.waited = bool(self.queue)
        getattr(self, "_" + self.scheduler)()
        if self.faithful and self.scheduled:
            tokens = {sequence.id: tokens for sequence, tokens in self.scheduled}
            for victim in self.victims:
                # Outputs become prompt and are no longer counted. Who came back in the same
                # iteration has its chunk behind it and nothing else.
                victim.prompt, victim.outputs = victim.tokens, 0
                victim.computed = tokens.get(victim.id, 0)
                self.not_reset.remove(victim)
        resumed = [sequence for sequence in self.new if sequence.ran_before]
        new = [sequence for sequence in self.new if not sequence.ran_before]
        for sequence in self.new:
            sequence.ran_before = True
        place = {sequence.id: index for index, sequence in enumerate(self.running)}
        self.scheduled.sort(key=lambda one: place[one[0].id])
        return self.decided(
            new=new, resumed=resumed, preempted=self.victims, limited_by=self.limited_by,
        ) | dict(refused=tuple(self.refused))

    def _sarathi(self) -> None:
        self._decodes()
        self._running_chunks()
        if self.victims and not self.faithful:
            self.limited_by = "preempting"
        else:
            self._admit()

    def _simple_chunking(self) -> None:
        if self.turn == "decode":
            self._decodes()
            # Without a decode to compute the prefills need not wait for their turn.
            if self.scheduled or self.faithful:
                self._closed("freeze")
                self.turn = "prefill"
                return
        self._running_chunks()
        if self.scheduled or self.victims:
            self._closed("freeze")
        else:
            self._admit()
        if self.scheduled or (self.faithful and self.refused):
            self.turn = "decode"
            return
        if self.turn == "prefill":
            self._decodes()
        self.turn = "prefill"

    def _vllm(self) -> None:
        for sequence in self.running:
            if self._prefills(sequence):
                self._count(sequence, min(sequence.tokens - sequence.computed, self.budget))
        self._admit()
        if not (self.scheduled or (self.faithful and self.refused)):
            self._decodes()

    def _orca(self) -> None:
        for sequence in self.running:
            self._count(sequence, 1)
        self._admit()

    def _faster_transformer(self) -> None:
        for sequence in self.running:
            self._count(sequence, 1)
        if self.running:
            self._closed("batch_running")
        else:
            self._admit()

    def _closed(self, word: str) -> None:
        self.limited_by = word if self.waited else "queue_empty"

    def _count(self, sequence: Sequence, tokens: int) -> None:
        self.run(sequence, tokens)
        self.used += tokens

    def _prefills(self, sequence: Sequence) -> bool:
        return sequence.computed < sequence.prompt or sequence.tokens - sequence.computed > 1

    def _decodes(self) -> None:
        """One token for each decode, victims from the end."""
        unvisited, kept = self.running[:], []
        while unvisited:
            sequence = unvisited.pop(0)
            if self._prefills(sequence):
                kept.append(sequence)
                continue
            while self.free == 0 and unvisited:
                self._preempt(unvisited.pop())
            lacking = max(self.blocks_of(sequence.tokens) - sequence.blocks, 0)
            if self.free == 0 and (self.faithful or lacking):
                self._preempt(sequence)
                continue
            self.take(sequence, lacking)
            self._count(sequence, 1)
            kept.append(sequence)
        self.running = kept

    def _preempt(self, victim: Sequence) -> None:
        self.drop(victim)
        self.queue.insert(0, victim)
        self.victims.append(victim)
        if self.faithful:
            self.not_reset.append(victim)
        else:
            victim.computed = 0

    def _running_chunks(self) -> None:
        for sequence in self.running:
            if self._prefills(sequence):
                tokens = self._chunk(sequence)
                if tokens > 0:
                    self._count(sequence, tokens)

    def _chunk(self, sequence: Sequence) -> int:
        size = self.chunk_size
        if self.enable_dynamic_chunking_schedule:
            sizes = self._chunk_sizes()
            each = -(-self.chunk_schedule_max_tokens // self.chunk_schedule_stages)
            size = sizes[min(sequence.computed // each, len(sizes) - 1)]
        if self.faithful:
            # A victim that is not reset has its prompt behind it.
            tokens = min(max(sequence.prompt - sequence.computed, 0), size - self.used)
            if tokens < 0:
                raise OriginalRaises(self.iteration)  # it asserts that no chunk is negative
            return tokens
        return max(min(sequence.tokens - sequence.computed, size - self.used), 0)

    def _chunk_sizes(self) -> list[int]:
        """Stages from high to low, evenly spaced and then rounded to 32."""
        stages, low = self.chunk_schedule_stages, self.low_chunk_size
        span = self.high_chunk_size - low
        sizes = [low + span * stage // max(stages - 1, 1) for stage in range(stages)]
        return [round(size / 32) * 32 for size in reversed(sizes)]

    def _too_long(self, head: Sequence) -> bool:
        """Refuse the head if it is longer than any prompt may be."""
        length = head.tokens if self.faithful else head.prompt
        if length > self.longest:
            word = "prompt_too_long"
        elif self.scheduler == "vllm" and length > self.budget:
            word = "prompt_exceeds_iteration"
        else:
            return False
        if head in self.not_reset:
            raise OriginalRaises(self.iteration)  # no such transition for who is not reset
        self.queue.remove(head)
        self.refused.append((head.id, word))
        return True

    def _admit(self) -> None:
        while self.queue:
            head = self.queue[0]
            if self._too_long(head):
                continue
            tokens = counts = 0
            if len(self.running) >= self.max_num_seqs:
                self.limited_by = "seats"
            elif self.used >= self._most():
                self.limited_by = "budget"
            elif (lacks := self.blocks_of(self._owned(head))) > self.free:
                self.limited_by = "blocks"
            elif lacks + self._spared() > self.free:
                self.limited_by = "watermark"
            else:
                tokens, counts = self._tokens(head)
                if tokens == 0:
                    self.limited_by = "budget"
            if tokens == 0:
                return
            self.queue.pop(0)
            self.running.append(head)
            self.new.append(head)
            if head not in self.victims and head in self.not_reset:
                self.not_reset.remove(head)
            self.take(head, lacks)
            self.run(head, tokens)
            self.used += counts

    def _most(self) -> int:
        if self.whole_prompts:
            return self.budget
        if self.enable_dynamic_chunking_schedule:
            return max(self._chunk_sizes())
        return self.chunk_size

    def _spared(self) -> int:
        if self.reserves_output or not (self.running or self.faithful):
            return 0
        return int(self.watermark * self.num_blocks)

    def _owned(self, head: Sequence) -> int:
        """Positions that the head owns from its admission."""
        if not self.reserves_output:
            return head.tokens
        if self.faithful:
            return self.longest
        whole = max(self.longest, head.prompt + head.max_tokens)
        return min(whole, self.num_blocks * self.block_size)

    def _tokens(self, head: Sequence) -> tuple[int, int]:
        """Tokens to compute of the head, and how many of the budget they count for."""
        if not self.whole_prompts:
            return self._chunk(head), self._chunk(head)
        if head.tokens + self.used <= self.budget:
            return head.tokens - head.computed, head.tokens
        if not self.faithful and self.used == 0:
            # Too long to be computed again at once: in pieces, the first one alone.
            return self.budget, head.tokens
        return 0, 0


@st.composite
def cases(draw, faithful: bool = False):
    """One of the schedulers with a workload; with its faults, prompts may be too long for it."""
    # There because it imports this module.
    from tests.policies.beside import LIMITS, Case, systems, workloads

    block_size, num_blocks, max_length = draw(systems())
    scheduler = draw(st.sampled_from([*SCHEDULERS, "sarathi", "simple_chunking", "vllm"]))
    knobs = dict(
        scheduler=scheduler, faithful=faithful,
        max_num_seqs=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 6, 6])),
        max_model_len=draw(st.sampled_from([0, 0, 0, 12, 20, max_length - 3])),
    )
    if scheduler not in ("orca", "faster_transformer"):
        knobs |= dict(watermark=draw(st.sampled_from([0.0, 0.01, 0.01, 0.1, 0.3])))
    if scheduler == "vllm":
        knobs |= dict(max_batched_tokens=draw(st.sampled_from([0, 8, 16, 24, 40, 64])))
    elif scheduler == "sarathi" and draw(st.integers(0, 2)) == 0:
        knobs |= dict(
            enable_dynamic_chunking_schedule=True,
            low_chunk_size=draw(st.sampled_from([32, 32, 64])),
            high_chunk_size=draw(st.sampled_from([32, 64, 64])),
            chunk_schedule_max_tokens=draw(st.sampled_from([10, 30, 60])),
            chunk_schedule_stages=draw(st.integers(1, 4)),
        )
    elif scheduler in ("sarathi", "simple_chunking"):
        knobs |= dict(chunk_size=draw(st.one_of(st.integers(2, 16), st.integers(2, 64))))
    # Who is refused makes room in the window only in the next iteration.
    refuses = knobs["max_model_len"] or knobs.get("max_batched_tokens")
    workload = draw(workloads(block_size, max_length, LIMITS.rows if refuses else 20))
    return Case(
        "sarathi", knobs, block_size, num_blocks, max_length, workload, swap_blocks=num_blocks
    )
