"""What the cells of an experiment would take: time and memory, before anything is started.

Finished runs under the same `results_dir` tell best; where there are none of that kind, a rule of
thumb does. Neither is a promise: the first run of a process compiles, and machines differ.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from cbjax import hardware
from cbjax.config import Cell, Experiment, RunConfig
from cbjax.config.study import SearchConfig
from cbjax.experiment.cell import asked_tokens, settings
from cbjax.experiment.workload import build_workload
from cbjax.hardware.roofline import StepCosts, step_costs
from cbjax.models.tiny import TINY_SOURCES, tiny_config
from cbjax.results import collect_runs, is_finished

PROCESS_BYTES = 5e8  # Python, JAX and a few compiled programs
START_S = 10.0  # to compile what a policy needs, in seconds
# Seconds of a token: of the scheduler alone, and operations per second of a core on a model.
TOKEN_S = {"simulated": 2e-6, "unit_clock": 2e-4}
OPERATIONS_PER_S = 2e10
DOUBLINGS = 6  # usual number, from where a search begins to a load that is too much
FROM_RUNS, BY_RULE = "finished runs", "rule of thumb"


def estimate_cells(experiment: Experiment) -> pl.DataFrame:
    """Ask what an experiment would run.

    Args:
        experiment: from `cbjax.load_config`.

    Returns:
        A row per cell: `cell`, `finished` (it will not be run again), `runs` (several in a search),
        `requests` and `tokens` (of prompts and, at most, of answers) of one, `seconds` of all and
        `memory_bytes` (null where nothing tells), `by` (finished runs, or a rule of thumb).
    """
    known = _Known(Path(experiment.results_dir), experiment.name)
    runs = _runs(experiment.study.search)
    rows = []
    for cell in experiment.cells:
        done = not experiment.force and is_finished(
            experiment.results_dir, experiment.name, settings(cell), cell.config.seed
        )
        rows.append({"cell": cell.label, "finished": done, **_estimate(cell, runs, known)})
    return pl.DataFrame(rows, schema_overrides={"seconds": pl.Float64, "memory_bytes": pl.Int64})


def _runs(search: SearchConfig | None) -> int:
    """Loads that a search tries of a cell: some doublings, then halves down to its precision."""
    if search is None:
        return 1
    return search.seeds * (DOUBLINGS + math.ceil(math.log2(1 / search.precision)))


def _estimate(cell: Cell, runs: int, known: "_Known") -> dict[str, Any]:
    config = cell.config
    workload = build_workload(config)
    tokens = asked_tokens(workload)
    told = known.of(config)
    seconds, memory, by = _seconds(config, tokens), _memory_bytes(config), BY_RULE
    if told is not None:
        seconds, memory, by = told.token_s * tokens, told.memory_bytes, FROM_RUNS
    return {
        "runs": runs, "requests": len(workload), "tokens": tokens,
        "seconds": None if seconds is None else runs * seconds,
        "memory_bytes": None if memory is None else int(memory), "by": by,
    }


@dataclass(frozen=True)
class _Told:
    """What finished runs of a kind took: seconds per token asked for, and bytes at their peak."""

    token_s: float
    memory_bytes: float


class _Known:
    """Finished runs, by backend, policy and, for a real model, the model.

    Those of the experiment tell best; those of others are read only if it has none of the kind.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._folders = (root / name, root)
        self._rows: dict[Path, pl.DataFrame] = {}

    def of(self, config: RunConfig) -> _Told | None:
        """What runs like this took; None if there are none."""
        return next(filter(None, (self._told(folder, config) for folder in self._folders)), None)

    def _told(self, folder: Path, config: RunConfig) -> _Told | None:
        if folder not in self._rows:
            self._rows[folder] = collect_runs(folder) if folder.is_dir() else pl.DataFrame()
        rows = self._rows[folder]
        wanted = {"environment.cell_s", "environment.asked_tokens", "model.source"}
        if not wanted <= set(rows.columns):
            return None
        rows = rows.filter(
            (pl.col("backend") == config.backend.name)
            & (pl.col("policy.name") == config.policy["name"])
            & pl.col("environment.cell_s").is_not_null()
        )
        if config.backend.name == "model":
            rows = rows.filter(pl.col("model.source") == config.model.source)
        if not len(rows):
            return None
        took = rows["environment.cell_s"] / rows["environment.asked_tokens"]
        return _Told(
            float(took.median()), float(rows["environment.peak_memory_bytes"].median())  # type: ignore
        )


def _seconds(config: RunConfig, tokens: int) -> float | None:
    if config.backend.name in TOKEN_S:
        return START_S + TOKEN_S[config.backend.name] * tokens
    costs = _costs(config)
    return None if costs is None else START_S + costs.token * tokens / OPERATIONS_PER_S


def _memory_bytes(config: RunConfig) -> float | None:
    """Of a model: its weights and its KV blocks; of a simulation hardly more than the process."""
    if config.backend.name in TOKEN_S:
        return PROCESS_BYTES
    costs, blocks = _costs(config), config.kv.blocks
    if costs is None:
        return None
    if blocks is None:
        free = psutil.virtual_memory().available - costs.memory
        return PROCESS_BYTES + costs.memory + (config.kv.memory_fraction or 0.3) * free
    return PROCESS_BYTES + costs.memory + blocks * config.kv.block_size * costs.kv_token


def _costs(config: RunConfig) -> StepCosts | None:
    """What the model costs, from a table and without loading it; None for a model of the user's."""
    source = {"smollm2": "smollm2-135m"}.get(config.model.source, config.model.source)
    if source in TINY_SOURCES:
        shape = hardware.models.shape_of(tiny_config(source), source)
    elif source in hardware.models.names():
        shape = hardware.models.load(source)
    else:
        return None
    return step_costs(shape, dtype=config.model.dtype, kv_dtype=config.kv.dtype)
