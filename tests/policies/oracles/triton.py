"""Triton's dynamic batcher in plain Python: queues by level, a cursor, and a batch that is sent.

Written from the numbered steps of its description, for one instance and requests of size 1. The
batcher thread takes its turn in every iteration; what an instance does with a batch is the static
batching of its own oracle.
"""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tests.policies.oracles.common import Sequence
from tests.policies.oracles.static import Static

SECOND = 1_000_000


@dataclass
class Triton(Static):
    """Knobs by the names of the model configuration."""

    preferred_batch_size: tuple[int, ...] | None = None
    max_queue_delay_microseconds: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0
    timeout_action: str = "REJECT"
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0
    allow_ragged_batch: bool = False
    now: int = 0  # seconds, one an iteration
    enqueued: dict[int, int] = field(default_factory=dict)  # id -> seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        self.padding = "ragged" if self.allow_ragged_batch else "padded"
        self.preferred = self.preferred_batch_size or (self.max_batch_size,)

    def arrive(self, id, prompt, max_tokens, priority=0, deadline=None) -> str | None:
        word = super().arrive(id, prompt, max_tokens, priority, deadline)
        if word:
            return word
        arrived = self.queue.pop()
        level = [one for one in self.queue if self._level(one) == self._level(arrived)]
        if self.max_queue_size and len(level) >= self.max_queue_size:
            return "queue_full"
        self.enqueued[id] = self.now
        self.queue.append(arrived)
        return None

    def _level(self, sequence: Sequence) -> int:
        if 1 <= sequence.priority <= self.priority_levels:
            return sequence.priority
        return self.default_priority_level

    def _deadline(self, sequence: Sequence) -> int | None:
        """In microseconds, as the batcher keeps it."""
        timeout = self.default_timeout_microseconds
        start = self.enqueued[sequence.id] * SECOND
        if self.allow_timeout_override and sequence.deadline is not None:
            timeout = min(timeout, sequence.deadline * SECOND - start)
        return start + timeout if self.default_timeout_microseconds else None

    def schedule(self) -> dict:
        rejected = []
        for sequence in list(self.queue):
            if self._expired(sequence) and self.timeout_action == "REJECT":
                self.queue.remove(sequence)
                rejected.append((sequence.id, "timeout"))
        step = super().schedule() | dict(refused=tuple(rejected))
        self.now += 1
        return step

    def _expired(self, sequence: Sequence) -> bool:
        deadline = self._deadline(sequence)
        return deadline is not None and self.now * SECOND > deadline

    def _in_line(self) -> list[Sequence]:
        """By level; within a level those in time, then the delayed."""
        line = []
        for level in sorted({self._level(sequence) for sequence in self.queue}):
            members = [sequence for sequence in self.queue if self._level(sequence) == level]
            line += [one for one in members if not self._expired(one)]
            line += [one for one in members if self._expired(one)]
        return line

    def _form(self) -> tuple[list[Sequence], str]:
        queue, self.queue = self.queue, self._in_line()
        pending, best, send_now, stopped = [], 0, False, "queue_empty"
        for sequence in self.queue:
            if len(pending) + 1 > min(self.max_batch_size, self.iteration_tokens):
                send_now, stopped = True, "seats"
                break
            if sum(self._owned([*pending, sequence])) > self.free:
                send_now, stopped = True, "blocks"
                break
            pending.append(sequence)
            if len(pending) in self.preferred:
                best = len(pending)
        size = self._send(pending, best, send_now)
        batch = pending[:size]
        for sequence, blocks in zip(batch, self._owned(batch), strict=True):
            self.running.append(sequence)
            self.take(sequence, blocks)
        self.queue = [sequence for sequence in queue if sequence not in batch]
        self.size = size
        self.longest = max((sequence.prompt for sequence in batch), default=0)
        if pending and not size:
            return batch, "wait_timer"
        return batch, stopped if size == len(pending) else "batch_running"

    def _send(self, pending: list[Sequence], best: int, send_now: bool) -> int:
        delay = self.max_queue_delay_microseconds
        oldest = min((self.enqueued[one.id] for one in pending), default=self.now)
        late = delay != 0 and (self.now - oldest) * SECOND >= delay
        if best and not late:
            return best
        if send_now or len(pending) >= max(self.preferred):
            return len(pending)
        return len(pending) if late or delay == 0 else 0


@st.composite
def cases(draw):
    """A Triton model with a workload."""
    # Here, because what draws cases for all systems knows their oracles.
    from tests.policies import beside

    numbers = draw(beside.systems())
    most = draw(st.integers(1, beside.LIMITS.seats))
    levels = draw(st.sampled_from([0, 0, 1, 2]))
    timeout = draw(st.sampled_from([0, 0, 3, 10, 30]))
    knobs = dict(
        max_batch_size=most,
        preferred_batch_size=tuple(draw(st.sets(st.integers(1, most), max_size=2))),
        max_queue_delay_microseconds=draw(
            st.sampled_from([0, SECOND // 2, 2 * SECOND, 5 * SECOND])
        ),
        priority_levels=levels, default_priority_level=draw(st.integers(min(levels, 1), levels)),
        timeout_action=draw(st.sampled_from(["REJECT", "DELAY"])),
        default_timeout_microseconds=timeout * SECOND,
        allow_timeout_override=draw(st.booleans()),
        max_queue_size=draw(st.sampled_from([0, 0, 0, 1, 3])),
        allow_ragged_batch=draw(st.booleans()),
    )
    # What sorts or counts the queue is exact while nobody waits behind the rows.
    plain = levels == timeout == knobs["max_queue_size"] == 0
    workload = draw(beside.workloads(numbers[0], numbers[2], 20 if plain else beside.LIMITS.rows))
    deadlines = st.sampled_from([None, None, 0, 1, 2, 8])
    requests = []
    for request in workload.requests:
        wait = draw(deadlines)
        own = None if wait is None else request.arrival + wait
        requests.append(replace(request, deadline=own))
    return beside.Case("triton", knobs, *numbers, replace(workload, requests=tuple(requests)))
