"""How the cost of an iteration grows, against what it must grow with at most.

    python -m benchmarks.growth [AXIS ...] [--quick] [--model smollm2] [--repeats 15]

Each axis varies one size and keeps the rest: live KV tokens (spread evenly, and most of them in one
sequence), running sequences, block size; and without a model, the host's and the scheduler's share
of an iteration against waiting requests, compiled rungs, longest context and KV blocks; and memory
against KV blocks. Wall and process CPU seconds, medians of repeats. KV is not filled by a prefill:
what it holds makes no difference to the time. Writes `rows.csv` and `growth.png`.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import polars as pl

from benchmarks.growth_rules import FLAT, LINEAR, Row, draw, judge
from cbjax import policies
from cbjax.core.ladder import Ladder, Rung, ladder
from cbjax.core.limits import system
from cbjax.engine import Engine
from cbjax.engine.clock import UnitClock
from cbjax.engine.loop import Arrival, Loop
from cbjax.engine.sizing import INBOX, limits_for
from cbjax.models import load_model

SEATS, BLOCK_SIZE = 32, 16


@dataclass(frozen=True)
class Sizes:
    """The points of every axis."""

    live: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    sequences: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    block_size: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    waiting: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    rungs: tuple[int, ...] = (1, 4, 16, 64)
    context: tuple[int, ...] = (512, 2048, 8192, 32768)
    blocks: tuple[int, ...] = (1024, 4096, 16384, 65536)
    longest: int = 8192  # of the sequences on the axis of live tokens; at most the model's


QUICK = Sizes(
    live=(128, 512), sequences=(1, 4), block_size=(4, 16), waiting=(10, 1_000), rungs=(1, 8),
    context=(512, 1024), blocks=(64, 256), longest=512,
)


class NoModel:
    """Executes a plan by doing nothing, so that only scheduler and host are measured."""

    def place(self, request_id, row):
        """Nothing depends on the row."""

    def move(self, state, host_plan):
        """There is no KV."""

    def execute(self, state, plan, host_plan, rung):
        """Token 0 for everybody."""
        return idle(host_plan)


def idle(host_plan) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of an iteration that nobody computed."""
    rows = host_plan.requests.shape[0]
    return np.zeros(rows, np.int32), np.zeros(rows, bool)


def median_of(step: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median wall and CPU seconds of a call, after two that warm up."""
    times = []
    for _ in range(repeats + 2):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    walls, cpus = zip(*times[2:], strict=True)
    return statistics.median(walls), statistics.median(cpus)


def decode(model, contexts: list[int], repeats: int, block_size: int = BLOCK_SIZE, longest=None):
    """Seconds of an iteration that decodes sequences of these contexts."""
    seats = len(contexts)
    room = repeats + 8 + seats // INBOX  # the first decode while the last are still to enter
    longest = min(longest or max(contexts) + room, model.config.max_length)
    budget = sum(contexts)  # so that all prompts pass in one iteration, which is not computed
    engine = Engine(
        model, policy=policies.vllm(max_num_batched_tokens=budget, max_num_seqs=seats),
        block_size=block_size, max_length=longest,
        num_blocks=sum(-(-(context + room) // block_size) for context in contexts),
        ladder=Ladder((Rung(seats, seats), Rung(budget, seats))),
    )
    execute = engine.executor.execute
    engine.executor.execute = lambda state, plan, host_plan, rung: idle(host_plan)
    ids = [
        engine.submit([1] * (context - 1), max_tokens=room, ignore_eos=True)
        for context in contexts
    ]
    while not all(engine.requests[one].token_ids for one in ids):
        engine.step()
    engine.executor.execute = execute
    return median_of(engine.step, repeats)


def live_tokens(model, sizes: Sizes, repeats: int) -> Iterator[Row]:
    """Eight sequences; evenly long, or one with nearly everything."""
    longest = min(sizes.longest, model.config.max_length) - repeats - 8
    for live in sizes.live:
        many = max(8, -(-live // longest))
        wall, cpu = decode(model, [live // many] * many, repeats, longest=sizes.longest)
        yield Row("live KV tokens", "even", live, wall, cpu, LINEAR)
        if live <= longest:
            contexts = [live - 7 * BLOCK_SIZE] + [BLOCK_SIZE] * 7
            wall, cpu = decode(model, contexts, repeats, longest=sizes.longest)
            yield Row("live KV tokens", "most in one sequence", live, wall, cpu, LINEAR)


def running(model, sizes: Sizes, repeats: int) -> Iterator[Row]:
    """Sequences of context 64."""
    for count in sizes.sequences:
        wall, cpu = decode(model, [64] * count, repeats)
        yield Row("running sequences", "context 64", count, wall, cpu, LINEAR)


def block_sizes(model, sizes: Sizes, repeats: int) -> Iterator[Row]:
    """Eight sequences of context 384: positions read beyond the live ones at most."""
    for block_size in sizes.block_size:
        wall, cpu = decode(model, [384] * 8, repeats, block_size)
        yield Row("block size", "8 sequences of 384", block_size, wall, cpu, FLAT)


def idle_loop(rungs: int = 0, context: int = 512, num_blocks: int = 4096) -> Loop:
    """A loop without a model, full of requests that decode."""
    policy = policies.vllm(max_num_batched_tokens=1024, max_num_seqs=SEATS)
    limits = limits_for(
        policy, block_size=BLOCK_SIZE, num_blocks=num_blocks, max_length=context, context=context,
    )
    numbers = system(limits, block_size=BLOCK_SIZE, num_blocks=num_blocks, max_length=context)
    mixed = np.linspace(SEATS, limits.tokens, rungs + 1).astype(int)[1:]
    shapes = ladder(limits.tokens, SEATS, decode=[], mixed=mixed) if rungs else None
    loop = Loop(
        policy, limits, numbers, shapes or ladder(limits.tokens, SEATS), NoModel(), UnitClock()
    )
    for request_id in range(SEATS):
        loop.submit(Arrival(request_id, 4, 400))
    for _ in range(8):
        loop.step()
    return loop


def waiting(model, sizes: Sizes, repeats: int) -> Iterator[Row]:
    """An iteration, and a submission, while others wait."""
    del model
    loop, submitted = idle_loop(), SEATS
    for count in sizes.waiting:
        # The median of portions, so that an interruption does not fall on all.
        portion = max((SEATS + count - submitted) // 16, 1)

        def submit(portion=portion):
            nonlocal submitted
            for request_id in range(submitted, submitted + portion):
                loop.submit(Arrival(request_id, 16, 16))
            submitted += portion

        wall, cpu = median_of(submit, 14)
        yield Row("waiting requests", "submit one", count, wall / portion, cpu / portion, FLAT)
        while int(loop.step().plan.num_waiting) < min(loop.limits.window, count):
            pass
        wall, cpu = median_of(loop.step, repeats)
        yield Row("waiting requests", "iteration, no model", count, wall, cpu, FLAT)


def host(axis: str, keyword: str, points: tuple[int, ...], repeats: int) -> Iterator[Row]:
    """Scheduler and host against a size of the loop."""
    for point in points:
        wall, cpu = median_of(idle_loop(**{keyword: point}).step, repeats)
        yield Row(axis, "iteration, no model", point, wall, cpu, FLAT)


def memory(model, sizes: Sizes, repeats: int) -> Iterator[Row]:
    """Bytes of the KV cache and of the scheduler's state; no seconds."""
    del repeats
    for num_blocks in sizes.blocks:
        engine = Engine(
            model, policy=policies.vllm(max_num_batched_tokens=64, max_num_seqs=8),
            block_size=4, num_blocks=num_blocks, max_length=64,
        )
        for series, held in (
            ("KV cache", (engine.executor.keys, engine.executor.values)),
            ("scheduler's state", engine.scheduler.state),
        ):
            size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(held))
            yield Row("memory", series, num_blocks, size, size, LINEAR, unit="bytes")


AXES: dict[str, Callable[..., Iterator[Row]]] = {
    "waiting": waiting,
    "rungs": lambda model, sizes, repeats: host("ladder size", "rungs", sizes.rungs, repeats),
    "context": lambda model, sizes, repeats: host(
        "longest context", "context", sizes.context, repeats
    ),
    "blocks": lambda model, sizes, repeats: host(
        "KV blocks", "num_blocks", sizes.blocks, repeats
    ),
    "live": live_tokens, "sequences": running, "block_size": block_sizes, "memory": memory,
}
WITH_WEIGHTS = {"live", "sequences", "block_size"}


def main(arguments: list[str] | None = None) -> int:
    """Measure, judge, draw; returns how many series grow faster than they may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join(AXES)}; default all")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="few and small points, model tiny")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/growth"))
    given = parser.parse_args(arguments)
    if unknown := set(given.axes) - set(AXES):
        parser.error(f"axis {sorted(unknown)[0]!r}: choose of {', '.join(AXES)}")
    sizes, name = (QUICK, "tiny") if given.quick else (Sizes(), given.model)
    wanted = given.axes or list(AXES)
    tiny = load_model("tiny")
    large = load_model(name) if WITH_WEIGHTS & set(wanted) else tiny
    rows: list[Row] = []
    for axis in wanted:
        for row in AXES[axis](large if axis in WITH_WEIGHTS else tiny, sizes, given.repeats):
            print(row, flush=True)
            rows.append(row)
    verdicts = judge(rows)
    print("\n" + "\n".join(map(str, verdicts)))
    given.out.mkdir(parents=True, exist_ok=True)
    pl.DataFrame([vars(row) for row in rows]).write_csv(given.out / "rows.csv")
    draw(rows, given.out / "growth.png", f"{name}, {given.repeats} repeats")
    print(f"rows and figure: {given.out}")
    return sum(not verdict.holds for verdict in verdicts)


if __name__ == "__main__":
    raise SystemExit(main())
