"""One cell of a study: served, measured, and written as a run."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cbjax.config import Cell
from cbjax.experiment import backends
from cbjax.experiment.answers import write_answers
from cbjax.experiment.workload import build_workload, request_names
from cbjax.metrics import LEVELS, Recorder, Slo, summarise
from cbjax.results import Study, describe_environment, write_run


def run_cell(
    cell: Cell, study: Study, shared: dict[str, Any], progress: backends.Progress | None
) -> None:
    """Serve one cell and keep its run; an interruption on the way leaves no folder.

    Args:
        cell: all settings.
        study: where the run belongs.
        shared: what the cells of a study have in common, such as loaded weights.
        progress: `(label, done, total)`.

    Raises:
        ConfigError: a setting that only the backend or the workload can judge.
        ValueError: the engine refuses a combination of settings.
    """
    config = cell.config
    workload = build_workload(config)
    recorder = Recorder()
    served = backends.get(config.backend.name)(config, workload, recorder, shared, progress)
    tables = recorder.tables() if served.tables is None else served.tables
    summary = summarise(
        tables.requests, tables.iterations, schedule=tables.schedule, memory=tables.memory,
        slo=Slo(**asdict(config.slo)), backend=config.backend.name,
        offered_rate=workload.offered_rate, itl_s=served.itl_s,
    )
    level = next(level for level in LEVELS if level == config.record)
    with study.new_run(settings(cell), config.seed) as folder:
        write_run(
            folder, label=cell.label, policy=kind_of(config.policy), seed=config.seed,
            config=settings(cell), environment=describe_environment(**served.environment),
            summary=summary, tables=tables.at_level(level), names=request_names(config),
        )
        write_answers(folder, workload, served.answers)


def settings(cell: Cell) -> dict[str, Any]:
    """The run's settings as plain nested values: what its folder is named by."""
    return asdict(cell.config)


def kind_of(policy: Mapping[str, Any]) -> str:
    """What figures call a policy; static batching with and without padding are two."""
    padding = policy.get("padding")
    return f"{policy['name']} {padding}" if padding else str(policy["name"])
