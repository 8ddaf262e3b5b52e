"""TensorRT-LLM's Python scheduler in plain Python: capacity stage, then micro-batch stage.

Written from the numbered steps of its description and the surprises seen in recorded decisions. The
list of active requests is kept as the original keeps it: in order of activation, with members that
have not started beside those that own blocks.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class TensorrtLlm(Scheduler):
    """Knobs by the system's own names."""

    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    enable_chunked_prefill: bool = False
    context_chunking_policy: str = "FIRST_COME_FIRST_SERVED"
    chunk_unit_size: int = 0
    batch_wait_timeout_ms: int = 0
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0
    now: int = -1  # seconds, one an iteration
    active: list[Sequence] = field(default_factory=list)
    activated: list[Sequence] = field(default_factory=list)
    fitting: list[Sequence] = field(default_factory=list)
    contexts: dict[int, int] = field(default_factory=dict)  # id -> tokens of its context phase
    arrivals: dict[int, int] = field(default_factory=dict)
    waited: int = 0
    drains: bool = False  # a static batch decodes

    def __post_init__(self) -> None:
        super().__post_init__()
        self.evicts = self.capacity_scheduler_policy == "MAX_UTILIZATION"
        self.reserves_output = not self.evicts

    def schedule(self) -> dict:
        self.now += 1
        for sequence in self.queue:
            self.arrivals.setdefault(sequence.id, self.now)
        refused = self._refuse()
        if self._gathers():
            self.fitting, self.activated = [], []
            return self._record([], [], refused, "wait_timer")
        self._activate()
        paused: list[Sequence] = []
        if self.evicts:
            paused = self._max_utilization()
        else:
            self._to_completion()
        chunks = self._micro_batch()
        chunks, holds_back = self._batch_wait(chunks)
        for sequence in paused:
            self._pause(sequence)
        started = [
            sequence for sequence in self.active
            if sequence.id in chunks and sequence not in self.running
        ]
        for sequence in started:
            self.queue.remove(sequence)
            self.running.append(sequence)
            self.contexts[sequence.id] = sequence.tokens
        self.batch = self._batch_order(chunks)
        for sequence in self.running:
            if sequence.id in chunks:
                self.take(sequence, max(self.blocks_of(sequence.tokens) - sequence.blocks, 0))
                self.run(sequence, chunks[sequence.id])
        word = self._why(paused, holds_back)
        return self._record(started, paused, refused, word)

    def _record(self, started, paused, refused, word) -> dict:
        new = [sequence for sequence in started if not sequence.ran_before]
        resumed = [sequence for sequence in started if sequence.ran_before]
        for sequence in started:
            sequence.ran_before = True
        step = self.decided(new=new, resumed=resumed, preempted=paused, limited_by=word)
        return step | dict(refused=tuple((one.id, "prompt_exceeds_iteration") for one in refused))

    def _refuse(self) -> list[Sequence]:
        """Prompts that validation turns away: without chunks they must fit one iteration."""
        if self.enable_chunked_prefill:
            return []
        long = [
            one for one in self.queue
            if one.prompt > self.max_num_tokens and not one.ran_before
        ]
        for one in long:
            self.queue.remove(one)
        return long

    def _gathers(self) -> bool:
        """Whether an idle engine still waits for a fuller batch."""
        if self.running or not self.queue or len(self.queue) >= self.max_batch_size:
            return False
        if any(sequence.ran_before for sequence in self.queue):
            return False
        oldest = min(self.arrivals[sequence.id] for sequence in self.queue)
        return (self.now - oldest) * 1000 < self.batch_wait_timeout_ms

    def _activate(self) -> None:
        alive = self.queue + self.running
        self.active = [sequence for sequence in self.active if sequence in alive]
        room = self.max_batch_size - len(self.active)
        fresh = [sequence for sequence in self.queue if sequence not in self.active]
        self.activated = fresh[:room]
        self.active += self.activated

    def _generates(self, sequence: Sequence) -> bool:
        return sequence in self.running and sequence.computed >= self.contexts[sequence.id]

    # The capacity stage.

    def _to_completion(self) -> None:
        """GUARANTEED_NO_EVICT and STATIC_BATCH."""
        free = self.free
        generating = [sequence for sequence in self.active if self._generates(sequence)]
        self.fitting = list(generating)
        for sequence in generating:
            free -= self._reservation(sequence)
        self.drains = self.capacity_scheduler_policy == "STATIC_BATCH" and bool(generating)
        if self.drains:
            return
        for sequence in self.active:
            if sequence in generating:
                continue
            need = self._reservation(sequence)
            if len(self.fitting) == self.max_batch_size or need > free:
                break
            free -= need
            self.fitting.append(sequence)

    def _reservation(self, sequence: Sequence) -> int:
        whole = self.blocks_of(sequence.prompt + sequence.max_tokens)
        return max(whole - sequence.blocks, 0)

    def _max_utilization(self) -> list[Sequence]:
        free, index, end = self.free, 0, len(self.active)
        self.fitting = []
        paused: list[Sequence] = []
        while index < end:
            sequence = self.active[index]
            need = self.blocks_of(sequence.tokens) - sequence.blocks
            if len(self.fitting) < self.max_batch_size and need <= free:
                free -= need
                self.fitting.append(sequence)
                index += 1
                continue
            started = [
                place for place in range(index, end) if self.active[place] in self.running
            ]
            if not started:
                break
            end = started[-1]
            free += self.active[end].blocks
            paused.append(self.active[end])
        return paused

    def _pause(self, sequence: Sequence) -> None:
        """Blocks go, outputs become part of the context, the place in the active list stays."""
        self.drop(sequence)
        sequence.computed = 0
        self.running.remove(sequence)
        self.queue.append(sequence)
        self.queue.sort(key=lambda one: one.id)

    # The micro-batch stage.

    def _micro_batch(self) -> dict[int, int]:
        tokens = 0
        chunks: dict[int, int] = {}
        to_chunk: list[Sequence] = []
        for sequence in self.fitting:
            left = sequence.tokens - sequence.computed
            if self._generates(sequence):
                if tokens + 1 > self.max_num_tokens:
                    break
                tokens += 1
                chunks[sequence.id] = 1
            elif self.enable_chunked_prefill:
                to_chunk.append(sequence)
            else:
                # A paused request may have outgrown the budget: it takes all of it.
                cost = min(left, self.max_num_tokens)
                if tokens + cost > self.max_num_tokens:
                    break
                tokens += cost
                chunks[sequence.id] = cost
        left = {one.id: one.tokens - one.computed for one in to_chunk}
        capacity = self.max_num_tokens - tokens
        if sum(left.values()) > capacity:
            if self.context_chunking_policy == "FIRST_COME_FIRST_SERVED":
                left = self._first_come(left, capacity)
            else:
                left = self._equal_progress(left, capacity)
        chunks |= left
        return {id: tokens for id, tokens in chunks.items() if tokens > 0}

    def _unit(self) -> int:
        return self.chunk_unit_size or self.block_size

    def _first_come(self, left: dict[int, int], capacity: int) -> dict[int, int]:
        chunks = {}
        for id, tokens in left.items():
            chunk = tokens
            if chunk > capacity:
                chunk = capacity - capacity % self._unit()
            capacity -= chunk
            chunks[id] = chunk
        return chunks

    def _equal_progress(self, left: dict[int, int], capacity: int) -> dict[int, int]:
        chunks = dict.fromkeys(left, 0)
        added = True
        while added:
            added = False
            for id, tokens in left.items():
                more = min(self._unit(), tokens - chunks[id])
                if 0 < more <= capacity:
                    chunks[id] += more
                    capacity -= more
                    added = True
        return chunks

    def _batch_wait(self, chunks: dict[int, int]) -> tuple[dict[int, int], bool]:
        """Whether contexts are held back so that more of them run at once."""
        generating = {one.id for one in self.active if self._generates(one)} & set(chunks)
        if not generating or len(generating) == len(chunks):
            return chunks, False
        enough = self.batch_wait_max_tokens_ratio * self.max_num_tokens
        if self.waited >= self.batch_wait_timeout_iters or sum(chunks.values()) >= enough:
            self.waited = 0
            return chunks, False
        self.waited += 1
        return {id: 1 for id in generating}, True

    def _batch_order(self, chunks: dict[int, int]) -> list[tuple[int, int]]:
        """As the original packs it: unfinished chunks, last chunks, generation."""

        def place(sequence: Sequence) -> int:
            if self._generates(sequence):
                return 2
            return 1 if sequence.computed + chunks[sequence.id] == sequence.tokens else 0

        packed = [sequence for sequence in self.fitting if sequence.id in chunks]
        return [(one.id, chunks[one.id]) for one in sorted(packed, key=place)]

    def _why(self, paused: list[Sequence], holds_back: bool) -> str:
        if not self.queue:
            return "queue_empty"
        if paused:
            return "preempting"
        if self.drains:
            return "batch_running"
        if any(sequence in self.fitting for sequence in self.queue):
            return "wait_timer" if holds_back else "budget"
        head = self.queue[0]
        return "blocks" if head in self.active else "seats"


@st.composite
def cases(draw):
    """A TensorRT-LLM system with a workload."""
    # Here, because what draws cases for all systems knows their oracles.
    from tests.policies import beside

    block_size, num_blocks, max_length = draw(beside.systems())
    chunked = draw(st.sampled_from([True, True, False]))
    budget = draw(st.one_of(st.integers(8, 20), st.integers(8, beside.LIMITS.tokens)))
    knobs = dict(
        max_batch_size=draw(st.integers(1, beside.LIMITS.seats)), max_num_tokens=budget,
        capacity_scheduler_policy=draw(
            st.sampled_from(
                ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "MAX_UTILIZATION", "STATIC_BATCH"]
            )
        ),
        enable_chunked_prefill=chunked,
        context_chunking_policy=draw(
            st.sampled_from(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"])
        ),
        chunk_unit_size=draw(st.sampled_from([0, 0, 1, 3, 5, 8])),
        batch_wait_timeout_ms=draw(st.sampled_from([0, 0, 0, 1000, 2500])),
        batch_wait_timeout_iters=draw(st.sampled_from([0, 0, 1, 3])),
        batch_wait_max_tokens_ratio=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
    )
    # Too long prompts are refused when they get a row: at once while nobody waits behind the rows.
    most = 20 if chunked else beside.LIMITS.rows
    workload = draw(beside.workloads(block_size, max_length, most))
    return beside.Case("tensorrt_llm", knobs, block_size, num_blocks, max_length, workload)
