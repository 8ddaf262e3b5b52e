"""transformers' continuous batching in plain Python: fifo and prefill_first, with and without lag.

Written from the numbered steps of its description and the surprises seen in decisions recorded from
release 5.24. Blocks have identities here, because finished ones may be found again by content.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.policies.oracles.common import Scheduler, Sequence

NO_LIMIT = 10**9


class Stuck(Exception):
    """Nothing can be scheduled and nobody can make room: the original ends here."""


@dataclass(eq=False)
class Block:
    """A block of the pool; `key` is all that was written up to its end, once it is registered."""

    key: tuple | None = None
    holders: int = 0


@dataclass(eq=False)
class Job(Sequence):
    """A request with its blocks, and what its tokens are called."""

    table: list[Block] = field(default_factory=list)
    decoding: bool = False
    stored: int = 0  # blocks in the host pool
    in_flight: int = 0  # tokens that the step before this one will bring
    registered: int = 0  # leading blocks that are known by content
    group: Any = None
    shared: int = 0  # leading prompt tokens that are those of the group
    over: bool = False

    def content(self, tokens: int) -> tuple:
        """Names of the first tokens: two are equal if and only if the tokens are."""
        common = min(self.shared, tokens)
        return (self.group if common else None, common, self.id if tokens > common else None,
                tokens)


Step = tuple[Job, bool, int]  # a job, whether it gets a token, the blocks that become full


@dataclass
class Transformers(Scheduler):
    """Knobs by the system's own names."""

    scheduler_type: str = "fifo"
    max_batch_tokens: int = 8192
    max_requests_per_batch: int = 1024
    max_blocks_per_request: int = 32
    safety_margin: float | None = None
    allow_block_sharing: bool = False
    cpu_offload_blocks: int = 0
    use_async_batching: bool = False
    read_budget: int | None = None
    cached: list[Block] = field(default_factory=list)
    by_content: dict[tuple, Block] = field(default_factory=dict)
    frozen: bool = False
    stored: int = 0
    starved: list[tuple[Job, int]] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)
    groups: dict[int, tuple[Any, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.safety_margin is None:
            self.safety_margin = 0.15 if self.scheduler_type == "fifo" else 0.0
        if self.read_budget is None:
            self.read_budget = self.num_blocks * self.block_size

    def arrive(self, id: int, prompt: int, max_tokens: int) -> str | None:
        refused = super().arrive(id, prompt, max_tokens)
        if refused is None:
            plain = self.queue.pop()
            group, shared = self.groups.get(id, (None, 0))
            self.queue.append(
                Job(id, prompt, plain.max_tokens, group=group, shared=min(shared, prompt))
            )
        return refused

    # Blocks -------------------------------------------------------------------------------------

    def extend(self, job: Job, tokens: int) -> bool:
        """Blocks for that many positions, or nothing at all."""
        lacking = self.blocks_of(tokens) - len(job.table)
        if lacking > self.free:
            return False
        for _ in range(lacking):
            job.table.append(Block(holders=1))
            self.free -= 1
        return True

    def give_back(self, job: Job, keep: bool) -> None:
        """Release all blocks; those known by content stay findable if `keep`."""
        for block in job.table:
            block.holders -= 1
            if block.holders:
                continue
            if block.key is not None and keep:
                self.cached.append(block)
            else:
                self.forget(block)
        job.table, job.registered = [], 0

    def forget(self, block: Block) -> None:
        if block.key is not None:
            del self.by_content[block.key]
            block.key = None
        self.free += 1

    def evict(self) -> bool:
        """Drop every block that is findable and that nobody holds."""
        dropped = bool(self.cached)
        for block in self.cached:
            self.forget(block)
        self.cached = []
        return dropped

    def hold(self, block: Block) -> None:
        if not block.holders:
            self.cached.remove(block)
        block.holders += 1

    def register(self, job: Job, count: int) -> None:
        """Make the blocks that are full findable; a block that exists already is shared instead."""
        for _ in range(count):
            index = job.registered
            key = job.content((index + 1) * self.block_size)
            known = self.by_content.get(key)
            own = job.table[index]
            if known is None:
                own.key = key
                self.by_content[key] = own
            elif known is not own:
                self.hold(known)
                job.table[index] = known
                own.holders -= 1
                assert own.holders == 0
                self.free += 1
            job.registered += 1

    def find(self, job: Job) -> int:
        """Take the longest findable prefix, never the whole; returns its blocks."""
        for index in range((job.tokens - 1) // self.block_size):
            block = self.by_content.get(job.content((index + 1) * self.block_size))
            if block is None:
                break
            self.hold(block)
            job.table.append(block)
            job.registered += 1
        job.computed = len(job.table) * self.block_size
        return len(job.table)

    # One iteration ------------------------------------------------------------------------------

    def schedule(self) -> dict:
        self.new: list[Job] = []
        self.resumed: list[Job] = []
        self.preempted: list[Job] = []
        self.offloaded: list[Job] = []
        self.restored: list[Job] = []
        self.attempts = 1
        self.fast = True
        while not self.attempt():
            if not self.offload():
                raise Stuck
            self.attempts += 1
        if self.scheduled and self.starved:
            self.offload()
        self.fast = self.fast and bool(self.scheduled)
        # Copied back when the step is made: until then they fill the host pool.
        for job in self.restored:
            self.stored -= job.stored
            job.stored = 0
        # Who lost its seat in the step that gave it one has never had it.
        self.new = [job for job in self.new if job in self.running]
        self.resumed = [job for job in self.resumed if job in self.running]
        return self.decided(
            new=self.new, resumed=self.resumed, preempted=self.preempted, limited_by=""
        )

    def candidates(self) -> list[Job]:
        decoding = [job for job in self.running if job.decoding]
        prefilling = [job for job in self.running if not job.decoding]
        active = decoding + prefilling
        if self.scheduler_type == "prefill_first":
            active = prefilling + decoding
        return active if self.frozen else active + self.line()

    def line(self) -> list[Job]:
        """The queue with offloaded and other requests taking turns."""
        offloaded = [job for job in self.queue if job.stored]
        fresh = [job for job in self.queue if not job.stored]
        mixed = []
        while offloaded or fresh:
            for kind in (offloaded, fresh):
                if kind:
                    mixed.append(kind.pop(0))
        return mixed

    def attempt(self) -> bool:
        """Walk the candidates once; False if nothing was scheduled for want of blocks."""
        self.starved = []
        self.fast = True
        failed = False
        tokens, seats, reads = self.max_batch_tokens, self.max_requests_per_batch, self.read_budget
        candidates = self.candidates()
        scarce = self.free / self.num_blocks < self.safety_margin
        if scarce and self.evict():
            scarce = self.free / self.num_blocks < self.safety_margin
        for job in candidates:
            if scarce and self.scheduled and not job.decoding:
                break
            if self.allow_block_sharing and job in self.queue and not job.stored:
                if self.find(job):
                    self.activate(job)
            wants = job.tokens + job.in_flight - job.computed
            count = min(wants, tokens)
            fast = self.fast and count == 1 and job.computed < self.fast_length
            if not fast and reads < job.computed:
                continue
            if not self.extend(job, job.computed + count):
                failed = True
                if job in self.running:
                    self.starved.append((job, count))
                continue
            if job in self.queue:
                self.activate(job)
            if job.stored:
                self.restored.append(job)
            self.fast = fast
            tokens -= count
            reads -= job.computed
            seats -= 1
            self.run(job, count)
            job.decoding = job.computed == job.tokens + job.in_flight
            if tokens == 0 or (reads <= 0 and not self.fast) or seats == 0:
                break
        return bool(self.scheduled) or not failed

    @property
    def fast_length(self) -> int:
        return self.max_blocks_per_request * self.block_size

    def activate(self, job: Job) -> None:
        self.queue.remove(job)
        self.running.append(job)
        (self.resumed if job.ran_before else self.new).append(job)
        job.ran_before = True

    def offload(self) -> bool:
        """Make room: drop the findable blocks, then take blocks of those who got none, newest first."""
        evicted = self.evict()
        if not self.starved:
            return evicted
        victims = []
        while self.starved and len(self.running) > 1:
            lacking = sum(
                self.blocks_of(job.computed + count) - len(job.table) for job, count in self.starved
            )
            if lacking <= self.free:
                break
            victim, _ = self.starved.pop()
            self.running.remove(victim)
            victims.append((victim, len(victim.table)))
            self.give_back(victim, keep=False)
        for victim, blocks in victims:
            self.roll_back(victim)
            if 0 < blocks <= self.cpu_offload_blocks - self.stored:
                victim.stored = blocks
                self.stored += blocks
                self.offloaded.append(victim)
            else:
                victim.computed = 0
            victim.decoding = False
            self.preempted.append(victim)
        for victim, _ in reversed(victims):
            self.queue.append(victim)
        if victims:
            self.frozen = True
        return bool(victims) or evicted

    def roll_back(self, victim: Job) -> None:
        """What the step under way would have brought is lost."""
        if victim.in_flight:
            victim.computed -= 1
            victim.in_flight = 0

    def swap_batches(self, batch: list[Step]) -> list[Step]:
        """Keep this batch for later; the one whose results are there now."""
        if not batch:
            return []
        before, self.before = self.before, batch
        for job, *_ in before:
            job.in_flight = 0
        for job, samples, _ in batch:
            job.in_flight = int(samples)
        return before

    def finish(self, stop_after: dict[int, int]) -> dict:
        """Take in a batch: this one, or with lag the one before, if this one is not empty."""
        batch = []
        for job, count in self.scheduled:
            before = 0 if job in self.restored else job.computed - count
            complete = job.computed // self.block_size - before // self.block_size
            batch.append((job, job.decoding, complete))
        if self.use_async_batching:
            batch = self.swap_batches(batch)
        self.scheduled = []
        ended = []
        for job, samples, complete in batch:
            if job.over or job not in self.running:
                continue
            if samples:
                job.outputs += 1
            if samples and job.outputs == stop_after[job.id]:
                ended.append((job, "stop"))
            elif samples and job.outputs >= job.max_tokens or job.tokens >= self.max_length:
                ended.append((job, "length"))
            elif self.allow_block_sharing and samples == job.decoding:
                self.register(job, complete)
        for job, _ in ended:
            job.over = True
            self.running.remove(job)
            self.give_back(job, keep=True)
            self.frozen = False
        return dict(
            finished=tuple(job.id for job, _ in ended),
            finish_reasons=tuple(reason for _, reason in ended),
        )
