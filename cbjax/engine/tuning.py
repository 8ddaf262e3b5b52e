"""A ladder from measured times: what padding costs here against what compiling costs.

The time of a rung is that of an iteration that schedules nothing on it. Attention follows live KV,
which is the same on every rung that holds a batch, so what differs between them is in that time.
"""

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax

from cbjax.cache import cache_dir
from cbjax.core.inbox import empty_inbox
from cbjax.core.ladder import Ladder, Rung, by_cost
from cbjax.core.schedule import schedule_jit
from cbjax.core.state import initial_state
from cbjax.engine.compiles import compiling_anew
from cbjax.engine.engine import Engine, Progress
from cbjax.machine import cores, processor
from cbjax.models.cache import replace_atomically


@dataclass(frozen=True)
class RungCost:
    """What a rung costs: seconds of an iteration, and of compiling its programs once."""

    rung: Rung
    step_s: float
    compile_s: float


def candidates(tokens: int, seats: int) -> list[Rung]:
    """Rungs worth measuring: sizes in steps of a half or a third, the greatest batch among them."""
    sequences = min(seats, tokens)
    decodes = {Rung(size, size) for size in _steps(1, sequences)}
    return sorted(decodes | {Rung(size, sequences) for size in _steps(sequences, tokens)})


def measure(
    engine: Engine, rungs: Iterable[Rung], repeats: int = 7, progress: Progress | None = None
) -> list[RungCost]:
    """Time rungs on an engine that serves nothing; each is compiled anew for it."""
    executor, rungs = engine.executor, list(rungs)
    inbox = empty_inbox(engine.limits)
    state = initial_state(engine.policy, engine.limits, engine.system)
    state, plan = schedule_jit(engine.policy, state, inbox, engine.limits)
    host_plan = jax.device_get(plan)
    costs = []
    with compiling_anew():
        for done, rung in enumerate(rungs):
            if progress:
                progress(f"timing {rung}", done, len(rungs))
            begun = time.perf_counter()
            state = executor.warm_up(engine.policy, state, plan, engine.limits, Ladder((rung,)))
            compile_s = time.perf_counter() - begun
            steps = []
            for _ in range(repeats):
                begun = time.perf_counter()
                executor.execute(state, plan, host_plan, rung)
                steps.append(time.perf_counter() - begun)
            costs.append(RungCost(rung, statistics.median(steps), compile_s))
    return costs


def expected_step(costs: Mapping[Rung, float], batches: Mapping[tuple[int, int], float]) -> float:
    """Mean seconds of an iteration on the ladder of these rungs.

    Args:
        costs: seconds of the rungs that are compiled.
        batches: how often batches of (tokens, sequences) come.
    """
    ladder = by_cost(costs)
    total = sum(
        often * costs[ladder.rungs[ladder.choose(*batch)]] for batch, often in batches.items()
    )
    return total / sum(batches.values())


def choose_rungs(
    costs: Iterable[RungCost], batches: Mapping[tuple[int, int], float], iterations: int
) -> dict[Rung, float]:
    """Rungs that earn their compile time, with their seconds per iteration.

    From the greatest batch alone, the rung that saves most is added, until none saves more over
    `iterations` iterations than compiling it takes.

    Args:
        costs: of the candidates; the greatest of them holds every batch.
        batches: how often batches of (tokens, sequences) come.
        iterations: between two starts that compile.
    """
    left = {cost.rung: cost for cost in costs}
    greatest = max(left)
    chosen = {greatest: left.pop(greatest).step_s}
    while left:
        now = expected_step(chosen, batches)
        gains = {
            rung: iterations * (now - expected_step({**chosen, rung: cost.step_s}, batches))
            - cost.compile_s
            for rung, cost in left.items()
        }
        best = max(gains, key=lambda rung: (gains[rung], rung))
        if gains[best] <= 0:
            break
        chosen[best] = left.pop(best).step_s
    return chosen


def ladder_within(costs: Mapping[Rung, float], tokens: int, seats: int) -> Ladder:
    """The tuned ladder for a system of other seats or tokens, ending in its greatest batch.

    Rungs beyond the greatest batch are cut to it. A batch that is greater than any tuned one gets
    a rung of its own, behind all.
    """
    sequences = min(seats, tokens)
    cut: dict[Rung, float] = {}
    for rung, cost in costs.items():
        seated = min(rung.sequences, sequences)
        decodes = rung.tokens == rung.sequences
        fitting = Rung(seated if decodes else min(rung.tokens, tokens), seated)
        cut[fitting] = min(cost, cut.get(fitting, cost))
    greatest = Rung(tokens, sequences)
    cut.setdefault(greatest, max(cut.values(), default=0.0) + 1.0)
    return by_cost(cut)


def tuned_file(source: str, dtype: str, attention: str | None) -> Path:
    """Where the tuned rungs of a model, an attention and this machine are kept."""
    device = jax.devices()[0]
    machine = [device.platform, device.device_kind, processor(), cores()]
    key = json.dumps([source, dtype, attention, *machine])
    return cache_dir() / "ladders" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def keep(path: Path, costs: Mapping[Rung, float]) -> None:
    """Write tuned rungs, whole or not at all."""
    rows = [[rung.tokens, rung.sequences, cost] for rung, cost in costs.items()]
    replace_atomically(path, lambda made: made.write_text(json.dumps(rows), encoding="utf-8"))


def tuned(source: str, dtype: str, attention: str | None) -> dict[Rung, float]:
    """The rungs that `python -m cbjax.tune` kept, with their seconds.

    Raises:
        ValueError: there are none for this model, attention and machine.
    """
    path = tuned_file(source, dtype, attention)
    if not path.is_file():
        extra = f" attention={attention}" if attention else ""
        raise ValueError(
            f"ladder.tuned = true: no ladder was tuned for {source} in {dtype} on this machine; "
            f"run python -m cbjax.tune model={source} dtype={dtype}{extra}"
        )
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {Rung(tokens, sequences): cost for tokens, sequences, cost in rows}


def _steps(start: int, stop: int) -> set[int]:
    """Sizes 1, 1.5, 2, 3, 4, ... times `start`, as whole numbers, and `stop`."""
    sizes = {stop}
    while start < stop:
        sizes |= {start, min(start + (start + 1) // 2, stop)}
        start *= 2
    return sizes
