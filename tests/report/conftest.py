"""Realistic runs for the figures: a tiny batcher, simulated by hand, told to the recorder."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbjax.metrics import IterationEvent, Recorder, summarise
from cbjax.results import Run, describe_environment, read_run, write_run

LADDER = (8, 16, 32, 64, 128, 256)


@dataclass
class Work:
    """One request of the fake batcher."""

    request_id: int
    arrival_s: float
    prompt: int
    output: int
    computed: int = 0
    emitted: int = 0

    @property
    def known(self) -> int:
        return self.prompt + self.emitted

    def blocks(self, tokens: int, block_size: int) -> int:
        return -(-tokens // block_size)


@dataclass
class Batcher:
    """Iteration by iteration: decode first, then prefill chunks, FCFS, last running preempted."""

    requests: list[Work]
    seats: int = 4
    budget: int = 128
    num_blocks: int = 40
    block_size: int = 16
    static: bool = False
    padded: bool = False
    at_end: bool = False
    base_s: float = 0.004
    per_token_s: float = 0.0002
    ladder: bool = True
    running: list[Work] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    computed_once: dict[int, int] = field(default_factory=dict)

    def run(self) -> Recorder:
        recorder = Recorder()
        waiting = sorted(self.requests, key=lambda work: work.arrival_s)
        for work in waiting:
            recorder.submitted(
                work.request_id,
                class_name="chat",
                scheduled_arrival_s=work.arrival_s,
                submitted_s=work.arrival_s,
                prompt_tokens=work.prompt,
                max_tokens=work.output,
            )
        clock = 0.0
        undelivered: dict[int, int] = {}
        while waiting or self.running:
            if not self.running and waiting[0].arrival_s > clock:
                clock = waiting[0].arrival_s
            queue = [work for work in waiting if work.arrival_s <= clock]
            grants, preempted = self.grant_running()
            for work in preempted:
                self.running.remove(work)
                waiting.insert(0, work)
            admitted, limited_by = self.admit(queue, grants, bool(preempted))
            for work in admitted:
                waiting.remove(work)
            emitted, finished = self.commit(grants)
            scheduled = sum(tokens for _, tokens, _, _ in grants)
            extra = self.seats - len(self.running) if self.padded and self.running else 0
            size = scheduled + extra
            if self.ladder:
                size = next(rung for rung in LADDER if rung >= size)
            duration = self.base_s + self.per_token_s * size
            delivered = None
            if self.at_end:
                for request_id in emitted:
                    undelivered[request_id] = undelivered.get(request_id, 0) + 1
                done = len(finished) == len(self.running)
                delivered = list(undelivered.items()) if done else []
                undelivered = {} if done else undelivered
            used = sum(self.held.values())
            recorder.iteration(
                IterationEvent(
                    start_s=clock,
                    duration_s=duration,
                    host_s=0.0004,
                    rung=f"{size}x{self.seats}",
                    rung_tokens=size,
                    extra_tokens=extra,
                    grants=grants,
                    admitted=[work.request_id for work in admitted],
                    preempted=[work.request_id for work in preempted],
                    emitted=emitted,
                    delivered=delivered,
                    finished=[(work.request_id, "length") for work in finished],
                    running=len(self.running),
                    waiting=sum(work.arrival_s <= clock for work in waiting),
                    used_blocks=used,
                    free_blocks=self.num_blocks - used,
                    live_tokens=sum(work.computed for work in self.running),
                    block_size=self.block_size,
                    limited_by=limited_by,
                )
            )
            for work in finished:
                self.running.remove(work)
                del self.held[work.request_id]
            clock += duration + 0.0004
        return recorder

    def grant(self, work: Work, tokens: int) -> tuple[int, int, int, str]:
        once = self.computed_once.get(work.request_id, 0)
        after = work.computed + tokens
        kind = "decode" if work.computed >= work.prompt and tokens == 1 else "prefill"
        self.computed_once[work.request_id] = max(once, after)
        self.held[work.request_id] = work.blocks(after, self.block_size)
        work.computed = after
        return work.request_id, tokens, max(after - max(once, after - tokens), 0), kind

    def grant_running(self) -> tuple[list, list[Work]]:
        grants, preempted, left = [], [], self.budget
        for work in list(self.running):
            tokens = min(work.known - work.computed, left)
            if work in preempted or tokens <= 0:
                continue
            need = work.blocks(work.computed + tokens, self.block_size)
            while self.free() < need - self.held[work.request_id] and len(self.running) > 1:
                victim = next(w for w in reversed(self.running) if w not in preempted)
                preempted.append(victim)
                del self.held[victim.request_id]
                victim.computed = 0
                if victim is work:
                    break
            if work not in preempted:
                grants.append(self.grant(work, tokens))
                left -= tokens
        gone = {work.request_id for work in preempted}
        return [grant for grant in grants if grant[0] not in gone], preempted

    def admit(self, queue: list[Work], grants: list, preempting: bool) -> tuple[list[Work], str]:
        admitted: list[Work] = []
        left = self.budget - sum(tokens for _, tokens, _, _ in grants)
        if preempting:
            return admitted, "preempting"
        if self.static and grants:
            return admitted, "batch_running"
        for work in queue:
            tokens = min(work.known, left)
            if len(self.running) >= self.seats:
                return admitted, "seats"
            if tokens <= 0:
                return admitted, "budget"
            if work.blocks(work.known, self.block_size) > self.free():
                return admitted, "blocks"
            admitted.append(work)
            self.running.append(work)
            grants.append(self.grant(work, tokens))
            left -= tokens
        return admitted, "queue_empty"

    def free(self) -> int:
        return self.num_blocks - sum(self.held.values())

    def commit(self, grants: list) -> tuple[list[int], list[Work]]:
        emitted, finished = [], []
        granted = {grant[0] for grant in grants}
        for work in self.running:
            if work.request_id in granted and work.computed == work.known:
                work.emitted += 1
                emitted.append(work.request_id)
                if work.emitted == work.output:
                    finished.append(work)
        return emitted, finished


def mixed_requests(count: int, rate: float | None = None, seed: int = 0) -> list[Work]:
    """Short answers, long prompts and long generations, all at once or at a Poisson rate."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1 / rate, count)) if rate else np.zeros(count)
    kinds = [(12, 6), (200, 10), (24, 60)]
    return [
        Work(i, float(arrivals[i]), *(int(n * draw.uniform(0.6, 1.4)) + 1 for n in kinds[i % 3]))
        for i in range(count)
    ]


def make_run(
    folder: Path,
    batcher: Batcher,
    label: str,
    policy: str,
    config: dict[str, Any] | None = None,
    names: dict[int, str] | None = None,
    slo: dict[str, float] | None = None,
    seed: int = 0,
) -> Run:
    """Simulate, summarise, write and read back one run."""
    tables = batcher.run().tables()
    folder.mkdir(parents=True)
    write_run(
        folder,
        label=label,
        policy=policy,
        seed=seed,
        config=config or {"policy": {"name": policy}, "kv": {"block_size": batcher.block_size}},
        environment=describe_environment(compile_count=6, compile_s=4.2),
        summary=summarise(
            tables.requests,
            tables.iterations,
            schedule=tables.schedule,
            memory=tables.memory,
            backend="simulated",
            slo=slo,
        ),
        tables=tables,
        names=names,
    )
    return read_run(folder)


VARIANTS: dict[str, dict[str, Any]] = {
    "static padded": {"static": True, "padded": True, "num_blocks": 400},
    "static ragged": {"static": True, "num_blocks": 400},
    "vllm": {},
}


def three_runs(root: Path, count: int = 24, rate: float | None = None, **knobs: Any) -> list[Run]:
    """The same requests under three batchers."""
    return [
        make_run(
            root / label.replace(" ", "_"),
            Batcher(mixed_requests(count, rate), **{**variant, **knobs}),
            label,
            label,
        )
        for label, variant in VARIANTS.items()
    ]


def worked_example(root: Path, static: bool) -> Run:
    """Two seats; A takes 2 steps, B 4, C waits with 2."""
    requests = [Work(0, 0.0, 1, 2), Work(1, 0.0, 1, 4), Work(2, 0.0, 1, 2)]
    unit = {"seats": 2, "base_s": 1.0, "per_token_s": 0.0, "ladder": False}
    label = "static" if static else "continuous"
    batcher = Batcher(requests, static=static, **unit)
    return make_run(root / label, batcher, label, label, names={0: "A", 1: "B", 2: "C"})


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return three_runs(tmp_path / "runs", count=9)


@pytest.fixture
def batcher_run(tmp_path: Path) -> Callable[..., Run]:
    def run(label: str = "vllm", **knobs: Any) -> Run:
        requests = mixed_requests(knobs.pop("count", 9))
        files = {name: knobs.pop(name) for name in ("config", "slo", "names") if name in knobs}
        return make_run(tmp_path / label, Batcher(requests, **knobs), label, label, **files)

    return run


@pytest.fixture
def example(tmp_path: Path) -> Callable[[bool], Run]:
    return lambda static: worked_example(tmp_path / "example", static)
