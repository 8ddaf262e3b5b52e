"""What the scheduler decides when it is given the times that an engine's run really took."""

import numpy as np
import polars as pl

from cbjax.config import Cell, build_policy
from cbjax.experiment.backends.simulated import limits_and_system
from cbjax.experiment.sizes import ladder_of
from cbjax.metrics import Recorder
from cbjax.results import Run
from cbjax.simulate import costs, simulate
from cbjax.simulate.replay import replay
from cbjax.workload import Arrivals, Workload, WorkloadRequest

PADDED_TO = 4096
DECIDED = ("iteration", "request_id", "kind", "tokens")


def differing_iterations(cell: Cell, real: Run) -> tuple[int, int]:
    """Replay a run's times, and compare every grant and preemption.

    Each iteration lasts until the next one's start, idle time included, and a request arrives
    between the iteration that did not see it yet and the one that did; so the clock is the run's
    own, and only decisions can differ.

    Args:
        cell: the settings, with the run's number of KV blocks.
        real: a run of the engine that kept its schedule.

    Returns:
        Iterations of the run, and how many of them are decided otherwise.
    """
    policy, config = build_policy(cell.config.policy), cell.config
    limits, system = limits_and_system(config, policy)
    starts = real.tables.iterations["start_s"].to_numpy()
    lasted = np.append(np.diff(starts), real.tables.iterations["duration_s"][-1])
    # Runs of similar length share a compiled program; the last time is repeated anyway.
    lasted = np.pad(lasted, (0, -len(lasted) % PADDED_TO), mode="edge")
    done = simulate(
        _as_seen(real, starts), policy, costs.replayed(lasted.tolist()), limits, system=system,
        rungs=ladder_of(config, policy, int(system.max_length)), pages=True,
    )
    recorder = Recorder()
    replay(done, recorder, deliver_at=policy.traits.deliver_at)
    ours, theirs = recorder.tables().schedule, real.tables.schedule
    assert ours is not None and theirs is not None
    return len(starts), count_differing(ours, theirs)


def count_differing(ours: pl.DataFrame, theirs: pl.DataFrame) -> int:
    """Iterations in which two schedules give other requests other tokens, or preempt others."""
    one, other = (table.select(DECIDED) for table in (ours, theirs))
    apart = pl.concat([
        one.join(other, on=DECIDED, how="anti"), other.join(one, on=DECIDED, how="anti")
    ])
    return apart["iteration"].n_unique()


def _as_seen(real: Run, starts: np.ndarray) -> Workload:
    """The run's requests, due half an iteration before the loop took them in."""
    rows = real.tables.requests
    # A refused request was never taken in; it is refused whenever it comes.
    seen_s = rows.select(pl.coalesce("visible_s", "scheduled_arrival_s")).to_series().to_numpy()
    first = np.minimum(np.searchsorted(starts, seen_s), len(starts) - 1)
    due_s = np.where(first == 0, starts[0], 0.5 * (starts[first - 1] + starts[first]))
    requests = [
        WorkloadRequest(
            request_id=row["request_id"], class_name=row["class"], priority=row["priority"],
            scheduled_arrival_s=float(due), prompt=None, prompt_tokens=row["prompt_tokens"],
            max_tokens=row["output_tokens"], ignore_eos=True, seed=0,
        )
        for row, due in zip(rows.iter_rows(named=True), due_s, strict=True)
    ]
    return Workload(tuple(requests), Arrivals("recorded"), 0)
