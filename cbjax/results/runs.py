"""The files of one run: written once, read back as one record."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from cbjax.metrics import Tables
from cbjax.results.hashing import plain

SUMMARY, ERROR = "summary.json", "error.json"
TABLES = ("requests", "iterations", "schedule", "memory")


class NotARun(ValueError):
    """The folder does not hold a finished run."""


@dataclass(frozen=True)
class Run:
    """A finished run as its files tell it.

    `label` names it in tables and figures, `policy` decides its colour, and `names` gives requests
    other names than their ids (only small examples do).
    """

    folder: Path
    label: str
    policy: str
    seed: int
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    tables: Tables
    names: Mapping[int, str]

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the summary, by names that end in their units."""
        return self.summary["metrics"]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON that any reader accepts: no NaN, no infinity."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_run(
    folder: Path,
    *,
    label: str,
    policy: str,
    seed: int,
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    summary: Mapping[str, Any],
    tables: Tables,
    names: Mapping[int, str] | None = None,
) -> None:
    """Write a run's files into a folder that is not yet its final one.

    Args:
        folder: from `Study.new_run`; exists.
        label: short and unique within the study, e.g. "static padded".
        policy: names the colour, e.g. "vllm"; runs of one policy share it.
        seed: of the run.
        config: resolved, nested, plain values.
        environment: from `describe_environment`.
        summary: from `metrics.summarise`.
        tables: at the level the run records; absent ones are not written.
        names: request_id -> name, for examples small enough to name requests.
    """
    head = {"label": label, "policy": policy, "seed": int(seed)}
    named = {"names": {str(key): name for key, name in names.items()}} if names else {}
    for name in TABLES:
        table: pl.DataFrame | None = getattr(tables, name)
        if table is not None:
            table.write_parquet(folder / f"{name}.parquet")
    _write_settings(folder, config, environment)
    write_json(folder / SUMMARY, {**head, **named, **summary})


def write_failure(
    folder: Path, *, label: str, policy: str, seed: int, backend: str, config: Mapping[str, Any],
    environment: Mapping[str, Any], error: str, traceback: str = "",
) -> None:
    """Write what is left of a run that ended with an error; it is no finished run.

    Args:
        folder: from `Study.new_run`; exists.
        error: in one line, kind and text.
        traceback: where it came from.
        label, policy, seed, backend, config, environment: as of a run.
    """
    told = {"label": label, "policy": policy, "seed": int(seed), "backend": backend}
    _write_settings(folder, config, environment)
    write_json(folder / ERROR, {**told, "error": error, "traceback": traceback})


def _write_settings(
    folder: Path, config: Mapping[str, Any], environment: Mapping[str, Any]
) -> None:
    settings = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(settings, encoding="utf-8")
    write_json(folder / "environment.json", environment)


def is_failure(folder: Path) -> bool:
    """Whether the folder tells of a run that ended with an error."""
    return (folder / ERROR).is_file()


def is_run(folder: Path) -> bool:
    """Whether the folder holds a finished run."""
    return (folder / SUMMARY).is_file() and (folder / "config.yaml").is_file()


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The run's (config, environment, summary), without its tables.

    Of a run that failed, the summary is what its error.json tells.

    Raises:
        NotARun: the folder holds neither.
    """
    told = folder / (ERROR if is_failure(folder) else SUMMARY)
    if not told.is_file():
        raise NotARun(
            f"{folder} is not a run: it has no {SUMMARY} and config.yaml; give a folder under "
            "results/<experiment>/<study>/runs"
        )
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    summary = json.loads(told.read_text(encoding="utf-8"))
    return config, environment, summary


def read_requests(folder: str | Path) -> pl.DataFrame | None:
    """The run's requests table; None where it kept none."""
    path = Path(folder) / "requests.parquet"
    requests = pl.read_parquet(path) if path.is_file() else pl.DataFrame()
    return None if requests.is_empty() else requests


def read_run(folder: str | Path) -> Run:
    """Read a finished run with its tables.

    Raises:
        NotARun: the folder holds no finished run.
    """
    folder = Path(folder)
    config, environment, summary = read_settings(folder)
    if is_failure(folder):
        raise NotARun(f"{folder} is of a run that failed: {summary['error']}")
    found = {
        name: pl.read_parquet(folder / f"{name}.parquet")
        for name in TABLES
        if (folder / f"{name}.parquet").is_file()
    }
    return Run(
        folder=folder,
        label=summary["label"],
        policy=summary["policy"],
        seed=summary["seed"],
        config=config,
        environment=environment,
        summary=summary,
        tables=Tables(**found),
        names={int(key): name for key, name in summary.get("names", {}).items()},
    )
