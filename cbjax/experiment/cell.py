"""One cell of a study: served, measured, and written as a run."""

import itertools
import resource
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cbjax.config import Cell
from cbjax.experiment import backends
from cbjax.experiment.answers import write_answers
from cbjax.experiment.workload import build_workload, request_names
from cbjax.metrics import LEVELS, Recorder, Slo, summarise
from cbjax.results import Study, content_digest, describe_environment, write_run
from cbjax.workload import Workload

# JAX keeps compiled programs for the life of the process, so only its first cell starts cold.
_begun = itertools.count()


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
    began, fresh = time.monotonic(), next(_begun) == 0
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
    facts = {
        "fresh_process": fresh, **served.environment, "asked_tokens": asked_tokens(workload),
        "cell_s": round(time.monotonic() - began, 3), "peak_memory_bytes": _peak_memory_bytes(),
    }
    with study.new_run(settings(cell), config.seed) as folder:
        write_run(
            folder, label=cell.label, policy=kind_of(config.policy), seed=config.seed,
            config=settings(cell), environment=describe_environment(**facts),
            summary=summary, tables=tables.at_level(level), names=request_names(config),
        )
        write_answers(folder, workload, served.answers)


def keep_failure(cell: Cell, study: Study, error: Exception) -> None:
    """Keep the error that a cell ended with in place of its run."""
    study.save_failure(
        settings(cell), cell.config.seed, label=cell.label, policy=kind_of(cell.config.policy),
        backend=cell.config.backend.name, environment=describe_environment(),
        error=in_one_line(error),
        traceback="".join(traceback.format_exception(error)),
    )


class CellFailed(RuntimeError):
    """A cell ended with an error in another process; the text is that of the error."""


def in_one_line(error: Exception) -> str:
    """Kind and first line of an error; one of another process says its kind itself."""
    text = (str(error) or "no message").splitlines()[0]
    return text if isinstance(error, CellFailed) else f"{type(error).__name__}: {text}"


def settings(cell: Cell) -> dict[str, Any]:
    """The run's settings as plain nested values: what its folder is named by.

    `files` tells what the files held that the run reads: one that has changed makes another run.
    """
    config = cell.config
    named = {f"backend.cost.{name}": value for name, value in config.backend.cost.items()}
    files = {
        field: content_digest(Path(value)) for field, value in named.items()
        if isinstance(value, str) and Path(value).is_file()
    }
    path = config.workload.path
    if path is not None and Path(path).exists():
        files["workload.path"] = content_digest(Path(path))
    return asdict(config) | ({"files": files} if files else {})


def kind_of(policy: Mapping[str, Any]) -> str:
    """What figures call a policy; static batching with and without padding are two."""
    padding = policy.get("padding")
    return f"{policy['name']} {padding}" if padding else str(policy["name"])


def asked_tokens(workload: Workload) -> int:
    """Tokens of all prompts and at most of all answers; a text counts 4 characters as one."""
    return sum(
        (one.prompt_tokens or max(len(str(one.prompt)) // 4, 1)) + (one.max_tokens or 0)
        for one in workload
    )


def _peak_memory_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
