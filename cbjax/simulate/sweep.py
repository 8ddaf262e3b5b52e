"""`simulate_many`: one compiled program, many settings, all cores.

Knobs, rates, seeds, cost parameters and the numbers of a system are values of the program, not part
of it. A batch of settings is therefore the same program called once per setting, on as many threads
as there are cores: nothing waits for the slowest of a batch, as it would under `vmap`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from cbjax.core.ladder import Ladder
from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy
from cbjax.machine import cores
from cbjax.simulate.simulate import Progress, Simulated, simulate
from cbjax.simulate.stream import Stream, stream_of
from cbjax.simulate.work import Cost
from cbjax.workload import Workload


@dataclass(frozen=True)
class Setting:
    """What may differ between the simulations of a sweep; fields as in `simulate`."""

    workload: Workload | Stream
    policy: Policy
    cost: Cost
    system: System
    host_s: float = 0.0
    compile_s: float = 0.0
    padded: bool = False


def simulate_many(
    settings: Sequence[Setting], limits: Limits, *, rungs: Ladder | None = None, log: bool = False,
    leap: bool = True, threads: int | None = None, progress: Progress | None = None,
) -> list[Simulated]:
    """Simulate every setting; results in the order of the settings.

    Policies of one system that differ in numbers share a program, and so do workloads whose sizes
    round up to the same power of two; another policy is another program, compiled at its first use.

    Args:
        settings: what to simulate.
        limits: static capacities that hold all of them.
        rungs: the ladder; by default the usual one for the limits.
        log: keep a row per iteration.
        leap: as in `simulate`.
        threads: simulations at a time; by default as many as the process has cores.
        progress: `(label, done, total)` after each setting.

    Raises:
        ValueError: numbers that do not fit together, or requests without a length.
        SimulationStalled: a policy is stuck.
    """
    sized = _same_size(settings, limits)

    def one(setting: Setting) -> Simulated:
        return simulate(
            limits=limits, rungs=rungs, log=log, leap=leap, **vars(setting)
        )

    done: list[Simulated] = []
    with ThreadPoolExecutor(threads or cores()) as pool:
        # Alone, so that it is compiled once.
        first = [one(setting) for setting in sized[:1]]
        for result in [*first, *pool.map(one, sized[1:])]:
            done.append(result)
            if progress:
                progress("settings", len(done), len(settings))
    return done


def _same_size(settings: Sequence[Setting], limits: Limits) -> list[Setting]:
    """Streams in place of workloads, padded alike; one workload is read once."""
    counts = [
        len(one.workload) for one in settings if isinstance(one.workload, Workload)
    ]
    size = 1 << max(max(counts, default=1) - 1, 1).bit_length()
    streams: dict[int, Stream] = {}
    sized = []
    for setting in settings:
        workload = setting.workload
        if isinstance(workload, Workload):
            if id(workload) not in streams:
                streams[id(workload)] = stream_of(workload, limits, size)
            workload = streams[id(workload)]
        sized.append(replace(setting, workload=workload))
    return sized
