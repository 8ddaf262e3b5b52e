"""transformers' continuous batching in plain Python: fifo and prefill_first, with and without lag.

Written from the numbered steps of its description and the surprises seen in decisions recorded from
release 5.24.
"""

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.policies.oracles.transformers_pool import Job, Pool

Step = tuple[Job, bool, int]  # a job, whether it gets a token, the blocks that become full


@dataclass
class Transformers(Pool):
    """Knobs by the system's own names."""

    scheduler_type: str = "fifo"
    max_batch_tokens: int = 8192
    max_requests_per_batch: int = 1024
    max_blocks_per_request: int = 32
    safety_margin: float | None = None
    use_async_batching: bool = False
    read_budget: int = 0
    seats: int = 10**9  # the original has no bound on those that starve beside a batch
    frozen: bool = False
    stored: int = 0
    starved: list[tuple[Job, int]] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.safety_margin is None:
            self.safety_margin = 0.15 if self.scheduler_type == "fifo" else 0.0
        self.read_budget = self.read_budget or self.num_blocks * self.block_size

    def arrive(self, id, prompt, max_tokens, priority=0, token_ids=()) -> str | None:
        refused = super().arrive(id, prompt, max_tokens, priority)
        if refused is None:
            plain = self.queue.pop()
            self.queue.append(Job(id, prompt, plain.max_tokens, token_ids=tuple(token_ids)))
        return refused

    def abort(self, id: int) -> bool:
        for place in (self.queue, self.running):
            for job in place:
                if job.id == id:
                    place.remove(job)
                    self.give_back(job, keep=True)
                    self.stored -= job.stored
                    job.over, self.frozen = True, False
                    return True
        return False

    def schedule(self) -> dict:
        self.new: list[Job] = []
        self.resumed: list[Job] = []
        self.preempted: list[Job] = []
        self.offloaded: list[Job] = []
        self.restored: list[Job] = []
        self.walk: list[Job] = []
        self.attempts = 1
        self.stuck = False
        while not self.attempt():
            self.stuck = not self.offload()
            if self.stuck:
                break
            self.attempts += 1
        limited_by = self.why()
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
        if limited_by == "queue_empty" and self.preempted:
            limited_by = "preempting"
        return self.decided(
            # They line up oldest first.
            new=self.new, resumed=self.resumed, preempted=self.preempted[::-1],
            limited_by=limited_by,
            # Told together with those that may be found.
        ) | dict(free_blocks=self.free + len(self.cached))

    def candidates(self) -> list[Job]:
        decoding = [job for job in self.running if job.decoding]
        prefilling = [job for job in self.running if not job.decoding]
        active = decoding + prefilling
        if self.scheduler_type == "prefill_first":
            active = prefilling + decoding
        return active if self.frozen else active + self.line(self.queue)

    def line(self, queue: list[Job]) -> list[Job]:
        """The queue with offloaded and other requests taking turns."""
        offloaded = [job for job in queue if job.stored]
        fresh = [job for job in queue if not job.stored]
        mixed = []
        while offloaded or fresh:
            for kind in (offloaded, fresh):
                if kind:
                    mixed.append(kind.pop(0))
        return mixed

    def attempt(self) -> bool:
        """Walk the candidates once; False if nothing was scheduled for want of blocks."""
        self.starved, self.fast, self.stop, failed = [], True, "", False
        self.closed = self.frozen
        tokens, places, reads = self.max_batch_tokens, self.max_requests_per_batch, self.read_budget
        scarce = self.free / self.num_blocks < self.safety_margin
        if scarce and self.evict():
            scarce = self.free / self.num_blocks < self.safety_margin
        self.walk = self.candidates()
        for job in self.walk:
            waits = job in self.queue
            if scarce and self.scheduled and not job.decoding:
                self.stop = "watermark"
                break
            if waits and len(self.running) >= self.seats:
                self.stop = "seats"
                break
            if waits and self.allow_block_sharing and not job.stored and self.find(job):
                self.activate(job)
            count = min(self.wants(job), tokens)
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
            places -= 1
            self.run(job, count)
            job.decoding = self.wants(job) == 0
            if waits and len(self.running) >= self.seats:
                self.stop = "seats"
            elif tokens == 0:
                self.stop = "budget"
            elif places == 0:
                self.stop = "seats"
            elif reads <= 0 and not self.fast:
                self.stop = "reads"
            if self.stop:
                break
        self.left = tokens, reads
        return bool(self.scheduled) or not failed

    def wants(self, job: Job) -> int:
        return job.tokens + job.in_flight - job.computed

    @property
    def fast_length(self) -> int:
        return self.max_blocks_per_request * self.block_size

    def activate(self, job: Job) -> None:
        self.queue.remove(job)
        self.running.append(job)
        (self.resumed if job.ran_before else self.new).append(job)
        job.ran_before = True

    def why(self) -> str:
        """Why the first that waits was not admitted, apart from those who lost their seat now."""
        waiting = [job for job in self.queue if job not in self.preempted]
        if not waiting:
            return "queue_empty"
        if self.closed:
            return "freeze"
        if self.stop:
            return self.stop
        first = next(job for job in self.walk if job in waiting)
        tokens, reads = self.left
        single = min(self.wants(first), tokens) == 1 and first.computed < self.fast_length
        return "reads" if reads < first.computed and not (self.fast and single) else "blocks"

    def offload(self) -> bool:
        """Make room: drop the findable blocks, then take blocks of those who got none."""
        evicted = self.evict()
        if not self.starved:
            return evicted
        victims = []
        # The newest goes first.
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
            # What the step under way would have brought is lost.
            victim.computed -= victim.in_flight
            victim.in_flight = 0
            if 0 < blocks <= self.swap_blocks - self.stored:
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

    def finish(self, stop_after: dict[int, int]) -> dict:
        """Take in this batch, or with lag the one before; say what the clients get of this one."""
        batch = []
        for job, count in self.scheduled:
            before = 0 if job in self.restored else job.computed - count
            full = job.computed // self.block_size - before // self.block_size
            batch.append((job, job.decoding, full))
        self.scheduled = []
        told = self.deliver(batch, stop_after)
        if self.use_async_batching:
            batch, self.before = self.before, batch
            for job, *_ in batch:
                job.in_flight = 0
            for job, samples, _ in self.before:
                job.in_flight = int(samples)
        self.ended = []
        for job, samples, full in batch:
            if job.over or job not in self.running:
                continue
            job.outputs += samples
            if samples and self.reason(job, job.outputs, stop_after):
                self.ended.append(job)
            elif self.allow_block_sharing and samples == job.decoding:
                self.register(job, full)
        for job in self.ended:
            job.over = True
            self.running.remove(job)
            self.give_back(job, keep=True)
            self.frozen = False
        return told

    def deliver(self, batch: list[Step], stop_after: dict[int, int]) -> dict:
        """Each output reaches its client once, in the iteration that computes it."""
        ended = []
        for job, samples, _ in batch:
            number = job.outputs + job.in_flight + 1
            last = self.reason(job, number - 1, stop_after)
            if not samples or number <= job.delivered or job.over or last:
                continue
            job.delivered = number
            reason = self.reason(job, number, stop_after)
            if reason:
                ended.append((job.id, reason))
        return dict(
            finished=tuple(id for id, _ in ended),
            finish_reasons=tuple(reason for _, reason in ended),
        )

    def reason(self, job: Job, outputs: int, stop_after: dict[int, int]) -> str:
        """Why a request with so many outputs has ended, or nothing."""
        if outputs and outputs == stop_after[job.id]:
            return "stop"
        full = outputs >= job.max_tokens or job.prompt + outputs >= self.max_length
        return "length" if full else ""


@st.composite
def cases(draw):
    """A system with a workload; all requests are within sight, for none of them blocks the rest."""
    # There because it imports this module.
    from tests.policies.beside import LIMITS, Case, systems, workloads

    block_size, num_blocks, max_length = draw(systems())
    longest = min(max_length, num_blocks * block_size)
    knobs = dict(
        scheduler_type=draw(st.sampled_from(["fifo", "prefill_first"])),
        max_batch_tokens=draw(st.one_of(st.integers(1, 12), st.integers(8, 64))),
        max_requests_per_batch=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 6, 6])),
        max_blocks_per_request=draw(st.sampled_from([0, 0, 1, 2, 4, 32])),
        safety_margin=draw(st.sampled_from([None, 0.0, 0.0, 0.05, 0.15, 0.3, 0.5])),
        use_async_batching=draw(st.booleans()),
        read_budget=draw(st.sampled_from([0, 0, longest, longest + 5])),
    )
    swap_blocks = draw(st.sampled_from([0, 1, 3, num_blocks]))
    workload = draw(workloads(block_size, max_length, LIMITS.rows))
    return Case(
        "transformers", knobs, block_size, num_blocks, max_length, workload, swap_blocks
    )
