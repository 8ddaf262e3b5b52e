"""The five schedulers of the Sarathi-Serve repository in plain Python, sound or with their faults.

Written from the numbered steps of their description and the surprises seen in recorded decisions.
"""

from dataclasses import dataclass, field

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class Sarathi(Scheduler):
    """Knobs by the system's own names; `turn` is whose turn it is under simple chunking."""

    scheduler: str = "sarathi"
    chunk_size: int = 512
    max_num_seqs: int = 128
    max_batched_tokens: int = 0
    max_model_len: int = 0
    enable_dynamic_chunking_schedule: bool = False
    low_chunk_size: int = 32
    high_chunk_size: int = 512
    chunk_schedule_max_tokens: int = 1024
    chunk_schedule_stages: int = 8
    watermark: float = 0.01
    faithful: bool = False
    turn: str = "prefill"
    used: int = 0
    new: list[Sequence] = field(default_factory=list)
    victims: list[Sequence] = field(default_factory=list)
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
        """The length that the system is configured for."""
        return self.max_model_len or self.max_length

    @property
    def budget(self) -> int:
        """Most tokens of an iteration of whole prompts."""
        if self.scheduler == "vllm":
            return min(self.max_batched_tokens or self.longest, self.longest)
        return self.iteration_tokens

    def schedule(self) -> dict:
        self.used, self.new, self.victims, self.refused = 0, [], [], []
        self.limited_by = "queue_empty"
        self.scheduled = []
        getattr(self, "_" + self.scheduler)()
        if self.faithful and self.scheduled:
            for victim in self.victims:
                self._reset(victim)
            # Whoever came back in the same step counts its chunk from the reset on.
            for sequence, tokens in self.scheduled:
                if sequence in self.victims:
                    sequence.computed = tokens
        resumed = [sequence for sequence in self.new if sequence.ran_before]
        new = [sequence for sequence in self.new if not sequence.ran_before]
        for sequence in self.new:
            sequence.ran_before = True
        return self.decided(
            new=new, resumed=resumed, preempted=self.victims, limited_by=self.limited_by,
        )

    # The five schedulers

    def _sarathi(self) -> None:
        self._decodes()
        self._running_chunks()
        if self.victims and not self.faithful:
            self.limited_by = "preempting"
        else:
            self._admit(self._chunk)

    def _simple_chunking(self) -> None:
        if self.turn == "prefill":
            self._running_chunks()
            if not self.scheduled:
                self._admit(self._chunk)
            if self.scheduled or self.refused:
                self.turn = "decode"
                return
        self._decodes()
        self.turn = "prefill"

    def _vllm(self) -> None:
        self._admit(self._whole)
        if not (self.scheduled or self.refused):
            self._decodes()

    def _orca(self) -> None:
        for sequence in self.running:
            self.run(sequence, 1)
        self._admit(self._whole)

    def _faster_transformer(self) -> None:
        for sequence in self.running:
            self.run(sequence, 1)
        if not self.scheduled:
            self._admit(self._whole)

    # Their parts

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
            while self.free == 0:
                if not unvisited:
                    break
                self._preempt(unvisited.pop())
            lacking = max(self.blocks_of(sequence.tokens) - sequence.blocks, 0)
            if self.free == 0 and (self.faithful or lacking):
                self._preempt(sequence)
                continue
            self.take(sequence, lacking)
            self.run(sequence, 1)
            self.used += 1
            kept.append(sequence)
        self.running = kept

    def _preempt(self, victim: Sequence) -> None:
        self.drop(victim)
        self.queue.insert(0, victim)
        self.victims.append(victim)
        if not self.faithful:
            victim.computed = 0

    def _reset(self, victim: Sequence) -> None:
        """Outputs become prompt and are no longer counted."""
        victim.prompt, victim.outputs, victim.computed = victim.tokens, 0, 0

    def _running_chunks(self) -> None:
        for sequence in self.running:
            if self._prefills(sequence) and not self._ran(sequence):
                tokens = self._chunk(sequence)
                if tokens > 0:
                    self.run(sequence, tokens)
                    self.used += tokens

    def _ran(self, sequence: Sequence) -> bool:
        return any(other is sequence for other, _ in self.scheduled)

    def _chunk(self, sequence: Sequence) -> int:
        size = self.chunk_size
        if self.enable_dynamic_chunking_schedule:
            sizes = self._chunk_sizes()
            each = -(-self.chunk_schedule_max_tokens // self.chunk_schedule_stages)
            size = sizes[min(sequence.computed // each, len(sizes) - 1)]
        if self.faithful:
            # A victim that is not reset yet has its prompt behind it.
            return min(max(sequence.prompt - sequence.computed, 0), size - self.used)
        return max(min(sequence.tokens - sequence.computed, size - self.used), 0)

    def _whole(self, sequence: Sequence) -> int:
        return sequence.tokens - sequence.computed if sequence.tokens + self.used <= self.budget else 0

    def _chunk_sizes(self) -> list[int]:
        stages = self.chunk_schedule_stages
        span = self.high_chunk_size - self.low_chunk_size
        sizes = [self.low_chunk_size + int(span * i / max(stages - 1, 1)) for i in range(stages)]
        return [round(size / 32) * 32 for size in reversed(sizes)]

    def _admit(self, tokens_of) -> None:
        while self.queue:
            head = self.queue[0]
            limit = self.budget if self.scheduler == "vllm" else self.longest
            if head.tokens > limit:
                self.queue.pop(0)
                self.refused.append((head.id, "policy"))
                continue
            blocks = self.blocks_of(self.longest if self.reserves_output else head.tokens)
            kept = 0 if self.reserves_output else int(self.watermark * self.num_blocks)
            if self.free - blocks < kept:
                self.limited_by = "blocks"
                return
            if self.scheduler != "vllm" and len(self.running) >= self.max_num_seqs:
                self.limited_by = "seats"
                return
            tokens = tokens_of(head)
            if tokens == 0:
                self.limited_by = "budget"
                return
            if len(self.running) >= self.max_num_seqs:
                self.limited_by = "seats"
                return
            self.queue.pop(0)
            self.running.append(head)
            self.new.append(head)
            self.take(head, blocks)
            self.run(head, tokens)
            self.used += tokens
