"""Many runs, one tidy table: a row per run, a column per setting and per metric."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from cbjax.results.hashing import NOT_PART_OF_IDENTITY, identity_hash
from cbjax.results.runs import ERROR, SUMMARY, is_failure, is_run, read_settings

# Facts of the machine that make timings incomparable when they differ.
COMPARED_FACTS = ("device", "processor", "cores", "python", "versions", "source")


def collect_runs(path: str | Path, swept: Sequence[str] | None = None) -> pl.DataFrame:
    """Gather finished runs into one table.

    Args:
        path: a run, a study, an experiment's folder or the root of results; hidden (unfinished)
            folders are not looked into.
        swept: dotted config keys that are meant to differ; by default the `swept` of the studies
            the runs belong to. `label`, `policy` and the seed may always differ.

    Returns:
        One row per run, in the order of the study; a run that several studies have in common is
        one row:

        * `experiment`, `study_hash`, `run_hash`, `folder`, `label`, `policy`, `seed`, `backend`,
          `offered_requests_per_s` (`offered_rate` of the summary);
        * `setting_hash`: the same for runs that differ in nothing but their seeds and labels;
        * `error`: why the run failed, and no metrics; null for a finished one;
        * one column per setting under its dotted name, e.g. `kv.block_size` (lists as JSON text);
        * one column per metric, its unit in its name, e.g. `ttft_s.p95`, `padding_fraction`,
          `waiting_s_by_reason.seats`;
        * `environment.*`;
        * `differs` and `differing_keys`: whether, and in which settings or facts of the machine
          outside the swept keys, a run differs from most of the others.

        No rows and only the fixed columns if there are no runs.

    Raises:
        FileNotFoundError: the path does not exist.
    """
    root = Path(path)
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give a folder of runs, e.g. results")
    found = list(_runs_below(root))
    if swept is None:
        swept = [key for _, study in found for key in study.get("swept", ())]
    rows = [_read_row(folder, study) for folder, study in found]
    return _table(rows, _differences(rows, set(swept)))


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted names; lists become JSON text, empty mappings vanish."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, list | tuple):
            flat[name] = json.dumps(value, ensure_ascii=False)
        else:
            flat[name] = value
    return flat


FIXED_COLUMNS = {
    "experiment": pl.String(),
    "study_hash": pl.String(),
    "run_hash": pl.String(),
    "folder": pl.String(),
    "label": pl.String(),
    "policy": pl.String(),
    "seed": pl.Int64(),
    "backend": pl.String(),
    "offered_requests_per_s": pl.Float64(),
    "setting_hash": pl.String(),
    "error": pl.String(),
    "differs": pl.Boolean(),
    "differing_keys": pl.List(pl.String()),
}


def _runs_below(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run folders with the index of their study ({} where there is none), in a stable order."""
    if is_run(root) or is_failure(root):
        yield root, _study_of(root)
        return
    folders = [
        file.parent
        for name in (SUMMARY, ERROR)
        for file in sorted(root.rglob(name))
        if (is_run(file.parent) or is_failure(file.parent))
        and not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]
    studies = {folder: _study_of(folder) for folder in folders}

    def place(folder: Path) -> tuple[str, int]:
        listed = studies[folder].get("runs", []) + studies[folder].get("failed", [])
        known = folder.name in listed
        return str(folder.parent), listed.index(folder.name) if known else len(listed)

    def identity(folder: Path) -> str:
        # Studies name their runs by their hashes, so one took a run over from another.
        return folder.name if studies[folder] else str(folder)

    told, finished = set(), {identity(folder) for folder in folders if is_run(folder)}
    for folder in sorted(folders, key=place):
        one = identity(folder)
        if one not in told and (is_run(folder) or one not in finished):
            yield folder, studies[folder]
            told.add(one)


def _study_of(run: Path) -> dict[str, Any]:
    index = run.parent.parent / "study.json"
    return json.loads(index.read_text(encoding="utf-8")) if index.is_file() else {}


@dataclass(frozen=True)
class _Row:
    """A run before it becomes columns: `compared` are the values that ought to agree."""

    fixed: Mapping[str, Any]
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @property
    def compared(self) -> dict[str, Any]:
        same = {f"environment.{fact}" for fact in COMPARED_FACTS}
        facts = {
            name: value
            for name, value in self.facts.items()
            if name in same or name.startswith("environment.versions.")
        }
        return {**self.settings, **facts}


def _read_row(folder: Path, study: Mapping[str, Any]) -> _Row:
    config, environment, summary = read_settings(folder)
    counted = {key: value for key, value in config.items() if key not in NOT_PART_OF_IDENTITY}
    told = {name: summary.get(name) for name in ("label", "policy", "seed", "backend")}
    return _Row(
        fixed={
            "experiment": study.get("experiment"),
            "study_hash": study.get("study_hash"),
            "run_hash": folder.name,
            "folder": str(folder),
            **told,
            "offered_requests_per_s": summary.get("offered_rate"),
            "setting_hash": _setting_hash(config, environment),
            "error": summary.get("error"),
        },
        settings={_setting(name): value for name, value in flatten(counted).items()},
        facts=flatten(environment, "environment."),
        metrics=flatten(summary.get("metrics", {})),
    )


def _setting_hash(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    settings = {key: value for key, value in config.items() if key != "seed"}
    return identity_hash(settings, 0, str(environment.get("source")))


def _setting(name: str) -> str:
    """The column of a setting; one named like a fixed column is told apart by a prefix."""
    return f"config.{name}" if name in FIXED_COLUMNS else name


def _differences(rows: Sequence[_Row], swept: set[str]) -> list[list[str]]:
    """Per row, the names outside the sweep whose value is not the most common one."""
    free = {_setting(name) for name in (*swept, "seed", "label", "policy")}
    free |= {f"files.{name}" for name in swept}  # another path is another content
    compared = [row.compared for row in rows]
    names = sorted({name for values in compared for name in values} - free)
    usual = {
        name: Counter(repr(values.get(name)) for values in compared).most_common(1)[0][0]
        for name in names
    }
    return [
        [name for name in names if repr(values.get(name)) != usual[name]] for values in compared
    ]


def _table(rows: Sequence[_Row], differences: Sequence[list[str]]) -> pl.DataFrame:
    flat = [
        {**row.fixed, "differs": bool(keys), "differing_keys": keys}
        | {**row.settings, **row.metrics, **row.facts}
        for row, keys in zip(rows, differences, strict=True)
    ]
    names = dict.fromkeys([*FIXED_COLUMNS, *(name for row in flat for name in row)])
    return pl.DataFrame([_column(name, [row.get(name) for row in flat]) for name in names])


def _column(name: str, values: list[Any]) -> pl.Series:
    """A typed column; values of mixed kinds (a number here, a word there) become text."""
    if name in FIXED_COLUMNS:
        return pl.Series(name, values, dtype=FIXED_COLUMNS[name])
    kinds = {type(value) for value in values if value is not None}
    for allowed, dtype in (({bool}, pl.Boolean), ({int}, pl.Int64), ({int, float}, pl.Float64)):
        if kinds and kinds <= allowed:
            return pl.Series(name, values, dtype=dtype, strict=False)
    text = [value if value is None else str(value) for value in values]
    return pl.Series(name, text, dtype=pl.String)
