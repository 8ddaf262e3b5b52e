"""The engine and the simulator side by side: fitted at some loads, compared at all of them.

Every cell runs on the engine. Step times are fitted to the iterations of the fitting loads; then
every cell is simulated with them, and once more with too few KV blocks, which must fit worse where
memory is scarce. What the engine decided is replayed apart, with the times it really took.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from cbjax.config import Cell, ConfigError
from cbjax.config.schema import BackendConfig, KvConfig
from cbjax.config.study import FitConfig
from cbjax.experiment.redecide import differing_iterations
from cbjax.experiment.runner import Runner
from cbjax.experiment.workload import build_workload
from cbjax.results import Run, flatten
from cbjax.simulate.fit import fit_rungs, host_seconds

# Settings in which a simulation differs from the run it stands for.
VARIED = (
    "backend.name", "backend.clock", "backend.host_s", "backend.padded", "backend.cost.name",
    "backend.cost.tokens", "backend.cost.seconds", "backend.cost.context", "kv.num_blocks",
    "kv.positions", "kv.memory_fraction", "environment.device",
)
METRICS = (
    "output_tokens_per_s", "ttft_s.p50", "ttft_s.p95", "itl_s.p50", "itl_s.p95", "e2e_s.p50",
    "e2e_s.p95", "preemptions",
)
SIMULATED, STARVED = "simulated", "too few KV blocks"
SATURATED = 0.01  # of the arrivals only lengthen the queue


def compare_with_engine(cells: Sequence[Cell], wanted: FitConfig, run: Runner) -> pl.DataFrame:
    """Run, fit, simulate, and lay the metrics beside one another.

    Args:
        cells: on the engine, with arrivals that have a rate and answers as long as asked.
        wanted: the loads to fit, and how starved the control is.
        run: runs a cell, or finds it finished.

    Returns:
        A row per cell, simulation and metric: label, `load` (requests/s), `held_out` (not fitted),
        `saturated`, `against`, metric, `measured`, `simulated`, `error` (relative; of preemptions
        the difference), and of the cell `iterations` and `differing`, those that the scheduler
        decides otherwise under the real times.

    Raises:
        ConfigError: a cell that is no engine's, or loads that are not those of the cells.
    """
    _require_loads(cells, wanted)
    measured = [run(cell, f"[{n}/{len(cells)}] ") for n, cell in enumerate(cells, start=1)]
    for cell, real in zip(cells, measured, strict=True):
        _require_full_answers(cell, real)
    known = [_rate(cell) in wanted.loads for cell in cells]
    fitted = [real for real, is_known in zip(measured, known, strict=True) if is_known]
    backend = fitted_backend(fitted)
    run.say(f"fitted to {sum(len(one.tables.iterations) for one in fitted)} iterations: "
            f"{_told(backend)}")
    rows: list[dict[str, Any]] = []
    for cell, real, is_known in zip(cells, measured, known, strict=True):
        iterations, differing = differing_iterations(_simulated(cell, real, backend), real)
        about = {
            "label": cell.label, "load": _rate(cell), "held_out": not is_known,
            "saturated": (real.metrics["queue_growth"] or 0.0) > SATURATED,
            "iterations": iterations, "differing": differing,
        }
        for against, share in ((SIMULATED, 1.0), (STARVED, wanted.starved)):
            done = run(_simulated(cell, real, backend, against, share))
            rows += [{**about, "against": against, **row} for row in errors(real, done)]
    return pl.DataFrame(rows, infer_schema_length=None)


def fitted_backend(runs: Sequence[Run]) -> BackendConfig:
    """Step times and host time of some runs, as the backend that simulates with them."""
    pairs = []
    for one in runs:
        assert one.tables.memory is not None
        pairs.append((one.tables.iterations, one.tables.memory))
    return BackendConfig(
        name="simulated", cost={"name": "table", **fit_rungs(pairs)}, padded=True,
        host_s=host_seconds([iterations for iterations, _ in pairs]),
    )


def errors(measured: Run, simulated: Run) -> Iterator[Mapping[str, Any]]:
    """Each metric of both, and the simulation's error."""
    ours, theirs = flatten(measured.metrics), flatten(simulated.metrics)
    for metric in METRICS:
        real, found = ours.get(metric), theirs.get(metric)
        error = None
        if real is not None and found is not None:
            if metric == "preemptions":
                error = float(found - real)
            elif real:
                error = found / real - 1.0
        yield {
            "metric": metric, "measured": None if real is None else float(real),
            "simulated": None if found is None else float(found), "error": error,
        }


def _simulated(
    cell: Cell, real: Run, backend: BackendConfig, name: str = SIMULATED, share: float = 1.0
) -> Cell:
    """The cell under the virtual clock, with a share of the blocks that the engine had."""
    blocks = max(1, round(share * int(real.environment["num_blocks"])))
    kv = KvConfig(block_size=cell.config.kv.block_size, num_blocks=blocks)
    return Cell(f"{cell.label}, {name}", cell.axes, replace(cell.config, kv=kv, backend=backend))


def _rate(cell: Cell) -> float | None:
    return cell.config.workload.arrivals.rate


def _require_loads(cells: Sequence[Cell], wanted: FitConfig) -> None:
    for cell in cells:
        if cell.config.backend.name != "model":
            raise ConfigError(
                f"backend.name = {cell.config.backend.name!r} (in {cell.label}): step times are "
                "fitted to runs of the engine; use backend=model"
            )
    there = sorted({rate for cell in cells if (rate := _rate(cell)) is not None})
    for load in wanted.loads:
        if load not in there:
            raise ConfigError(
                f"study.fit.loads = {list(wanted.loads)}: no cell has workload.arrivals.rate = "
                f"{load:g}; choose from {', '.join(f'{one:g}' for one in there) or 'none'}"
            )


def _require_full_answers(cell: Cell, real: Run) -> None:
    asked = {one.request_id: one.max_tokens for one in build_workload(cell.config)}
    for row in real.tables.requests.select("request_id", "output_tokens").iter_rows():
        if asked[row[0]] != row[1]:
            raise ConfigError(
                f"workload.ignore_eos: request {row[0]} (in {cell.label}) has {row[1]} tokens of "
                f"{asked[row[0]]} asked for, but simulated answers are as long as asked; set it to "
                "true, and bounds that all answers can reach"
            )


def _told(backend: BackendConfig) -> str:
    steps = zip(backend.cost["tokens"], backend.cost["seconds"], strict=True)
    text = ", ".join(f"{1e3 * pair[0]:.3g} ms for {size:g} tokens" for size, pair in steps)
    return f"{text}; {1e3 * backend.host_s:.3g} ms between iterations"
