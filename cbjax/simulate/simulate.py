"""`simulate`: a workload through a policy under a cost model, in a compiled loop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cbjax.core.ladder import Ladder, ladder
from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy
from cbjax.core.reasons import LimitedBy
from cbjax.core.rows import Status
from cbjax.core.state import initial_state
from cbjax.simulate import loop
from cbjax.simulate.pace import Pace, pace_of
from cbjax.simulate.run import PATIENCE, Run, Shape, begin, is_done, with_pages
from cbjax.simulate.stream import Stream, stream_of
from cbjax.simulate.work import Cost
from cbjax.workload import Workload

Progress = Callable[[str, int, int], None]


class SimulationStalled(RuntimeError):
    """The policy schedules nothing although requests wait and nothing else will happen."""


@dataclass(frozen=True)
class Simulated:
    """What a simulation leaves behind, in integers; `cbjax.simulate.results` makes tables of it.

    Attributes:
        kept: one row per request, columns `book.COLUMNS`; times are seconds and nanoseconds.
        prompt: prompt tokens of each.
        gaps: histogram of the gaps between tokens, see `histogram`.
        iterations: one row per turn of the log, columns `log.COLUMNS`; none if it was not kept.
        pages: (Plan, Emitted, begin, end) of each row of `iterations`, stacked; or None.
        iteration_count: iterations.
        turns: turns of the loop that they took; fewer where the loop leaped.
        system: block size and blocks.
        pace: what an iteration's time was made of.
        rungs: the ladder.
        deliver_at: of the policy's traits.
    """

    kept: np.ndarray
    prompt: np.ndarray
    gaps: np.ndarray
    iterations: np.ndarray
    pages: Any
    iteration_count: int
    turns: int
    system: System
    pace: Pace
    rungs: Ladder
    deliver_at: str


def simulate(
    workload: Workload | Stream, policy: Policy, cost: Cost, limits: Limits, *, system: System,
    rungs: Ladder | None = None, host_s: float = 0.0, compile_s: float = 0.0,
    padded: bool = False, log: bool = True, pages: bool = False, leap: bool = True,
    lanes: int = 32, turns: int = 4096, progress: Progress | None = None,
) -> Simulated:
    """Serve a workload under a virtual clock.

    The scheduler is the engine's own (`core.schedule`, `core.commit`), so its decisions are the
    engine's; the time of an iteration is the cost model's, rounded once to the nanosecond. A
    request becomes visible in the first iteration that begins after it arrived. Answers end at
    their `max_tokens`.

    Args:
        workload: the requests, or what `stream_of` made of them.
        policy: decides.
        cost: seconds of an iteration, see `cbjax.simulate.costs`.
        limits: static capacities, e.g. `core.sizing.limits_for(policy, ..., tables=False)`.
            A policy that shares prefixes needs tables and token ids.
        system: block size, usable blocks, longest sequence (`core.limits.system`).
        rungs: the ladder; by default the usual one for the limits.
        host_s: seconds of host work before every iteration.
        compile_s: seconds of a rung's first use; 0 = all were compiled before the start.
        padded: an iteration costs as many tokens as its rung has.
        log: keep a row per iteration.
        pages: keep every plan, for the exact time of every token; takes no leaps.
        leap: take iterations that are alike in one turn, with the same results.
        lanes: most iterations of a leap.
        turns: turns per call of the compiled loop; the host looks in between.
        progress: `(label, done, total)`.

    Returns:
        What became of each request and of each iteration.

    Raises:
        ValueError: numbers that do not fit together, or requests without a length.
        SimulationStalled: nothing can change any more although requests wait.
    """
    rungs = rungs or ladder(limits.tokens, limits.seats)
    pace = pace_of(cost, rungs, host_s=host_s, compile_s=compile_s, padded=padded)
    stream = workload if isinstance(workload, Stream) else stream_of(workload, limits)
    shape = Shape(
        limits, lanes=0 if pages else lanes, turns=256 if pages else turns,
        rows=256 if pages else 4 * turns * log, pages=pages, closed=bool(stream.concurrency > 0),
        shaped=bool(padded or compile_s > 0),
    )
    run = begin(initial_state(policy, limits, system), stream, len(rungs.rungs), shape)
    if pages:
        run = with_pages(policy, run, shape)
    count = int(stream.count)
    iterations: list[np.ndarray] = []
    plans: list[Any] = []
    taken = 0
    while True:
        run = loop.compiled_advance()(policy, pace, run, np.bool_(leap), shape=shape)
        rows, ended, idle = int(run.rows), int(run.ended), int(run.idle)
        taken += int(run.turns)
        # A copy: the buffers are given to the next call.
        iterations.append(np.array(np.asarray(run.log)[:, :rows].T))
        if pages:
            plans.append(jax.tree.map(lambda leaf, rows=rows: np.array(leaf[:rows]), run.pages))
        if progress:
            progress("requests", ended, count)
        if idle >= PATIENCE:
            raise _stalled(policy, run)
        if bool(is_done(run)):
            break
    return Simulated(
        kept=np.array(np.asarray(run.kept)[:count]), prompt=np.asarray(stream.prompt)[:count],
        gaps=np.array(run.gaps), iterations=np.concatenate(iterations),
        pages=jax.tree.map(lambda *parts: np.concatenate(parts), *plans) if pages else None,
        iteration_count=int(run.iteration), turns=taken, system=system, pace=pace, rungs=rungs,
        deliver_at=policy.traits.deliver_at,
    )


def _stalled(policy: Policy, run: Run) -> SimulationStalled:
    status = np.asarray(run.state.rows.status)
    running = int(np.sum(status == Status.RUNNING))
    waiting = int(np.sum(status != Status.FREE)) - running
    reason = LimitedBy(int(run.limited_by))
    return SimulationStalled(
        f"policy {policy.name} scheduled nothing {PATIENCE} times in a row with {running} "
        f"requests running and {waiting} waiting ({reason.sentence}): more KV blocks or seats may "
        "help; otherwise the policy has a fault"
    )
