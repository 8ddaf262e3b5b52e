"""Settings against the first one on the same requests: what differs, and how surely.

Settings of a study see the same requests at the same seed (common random numbers), so differences
are taken request by request and seed by seed before anything is averaged: what makes a workload
hard or easy drops out, and much smaller differences show.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from rich import box
from rich.console import RenderableType
from rich.table import Table

from cbjax.metrics import Interval, batch_means, bootstrap_interval, request_latencies, warmed_up
from cbjax.report.format import ABSENT, metric_title, number, significant
from cbjax.results import Run, read_requests, short_label

METRICS = (
    "ttft_s.mean", "ttft_s.p95", "tpot_s.mean", "e2e_s.mean", "e2e_s.p95", "output_tokens_per_s",
)
STATISTICS: Mapping[str, Callable[[np.ndarray], Any]] = {
    "mean": np.mean, "p95": lambda values: np.percentile(values, 95),
}
SAME, UNKNOWN = "no significant difference", "cannot tell"
NOTE = (
    "Changes and their intervals are in % of the first setting's mean. "
    "Latencies: of requests that both settings completed, without the first 20 % of the arrivals. "
    "Intervals: 95 % each, not widened for their number, over seeds; with one seed over ten "
    "stretches of its requests, which says nothing about other workloads. "
    f"'{UNKNOWN}' needs several seeds."
)
UNJUDGED = (
    "Whether these differences are more than chance cannot be told from one seed and so few "
    "requests: repeat with several seeds, e.g. seed=range(6)."
)
SCHEMA = {
    "against": pl.String, "setting": pl.String, "metric": pl.String, "first": pl.Float64,
    "this": pl.Float64, "difference": pl.Float64, "low": pl.Float64, "high": pl.Float64,
    "how": pl.String, "verdict": pl.String,
}

BySeed = Mapping[int, Mapping[str, Any]]
Latencies = Mapping[str, pl.DataFrame | None]


def paired_differences(rows: pl.DataFrame, runs: Sequence[Run] = ()) -> pl.DataFrame:
    """Compare every setting with the first one that has the same workload.

    Where each setting has a workload of its own, all are compared with the first, and only seeds
    are paired.

    Args:
        rows: from `collect_runs`; runs that differ in their seeds alone are one setting. Request
            tables are read from their folders where they were kept.
        runs: those of them that were read before, with their tables.

    Returns:
        A row per setting and metric: against, setting, metric, `first` and `this` (means over the
        seeds that both have), `difference` (this - first), `low` and `high` of its 95 % interval
        (null where there is none), `how` it was made, and the `verdict`: lower, higher, no
        significant difference, or cannot tell. No rows for a single setting.
    """
    settings: dict[str, dict[int, Mapping[str, Any]]] = {}
    names: dict[str, str] = {}
    for row in rows.to_dicts():
        settings.setdefault(row["setting_hash"], {})[row["seed"]] = row
        name = short_label(row["label"], "seed") or row["policy"]
        names.setdefault(row["setting_hash"], name)
    read = {str(run.folder): run.tables.requests for run in runs}
    latencies = {
        folder: _latencies(read[folder] if folder in read else read_requests(folder))
        for folder in rows["folder"]
    }
    found = [
        {"against": names[first], "setting": names[other], "metric": metric, **compared}
        for first, *others in _of_one_workload(settings)
        for other in others
        for metric, compared in _compare(settings[first], settings[other], latencies)
    ]
    return pl.DataFrame(found, schema=SCHEMA)


def paired_tables(differences: pl.DataFrame, most: int | None = None) -> list[RenderableType]:
    """The differences as a table per first setting, metric by metric, and how they were made.

    Args:
        differences: from `paired_differences`.
        most: rows to show; None: all.
    """
    if differences.is_empty():
        return []
    if not differences["low"].count():
        return [UNJUDGED]
    shown = differences if most is None else differences.head(most)
    groups = shown.group_by("against", maintain_order=True)
    tables: list[RenderableType] = [_table(first, group) for (first,), group in groups]
    left = len(differences) - len(shown)
    return [*tables, *([f"… and {left} more differences"] if left else ()), NOTE]


def _table(first: Any, differences: pl.DataFrame) -> Table:
    table = Table(title=f"paired differences against {first!r}", box=box.SIMPLE_HEAD,
                  padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("metric")
    words = [word for name in differences["setting"] for word in name.split()]
    table.add_column("setting", min_width=max(map(len, words)))
    for name in ("first", "this", "change (%)", "95 % interval (%)"):
        table.add_column(name, justify="right")
    table.add_column("verdict", min_width=len("significant"))
    for (metric,), part in differences.group_by("metric", maintain_order=True):
        if len(part) > 1:
            table.add_section()
        for place, row in enumerate(part.to_dicts()):
            table.add_row("" if place else metric_title(metric), *_cells(row))
    return table


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["setting"]
    for name in ("first", "this"):
        yield number(row[name], row["metric"])
    difference, low, high = (
        _percent(row[name], row["first"]) for name in ("difference", "low", "high")
    )
    yield difference
    yield low if low == ABSENT else f"{low} to {high}"
    yield row["verdict"]


def _percent(difference: float | None, first: float) -> str:
    """A difference in % of what it differs from, with its sign."""
    if difference is None or not first:
        return ABSENT
    share = 100 * difference / abs(first)
    sign = "+" if share > 0 else "\N{MINUS SIGN}" if share < 0 else ""
    return sign + significant(abs(share))


def _of_one_workload(settings: Mapping[str, BySeed]) -> Sequence[Sequence[str]]:
    """The settings' keys, those of one workload together; all together if none share theirs."""
    groups: dict[str, list[str]] = {}
    for key, by_seed in settings.items():
        row = next(iter(by_seed.values()))
        workload = {name: value for name, value in row.items() if name.startswith("workload.")}
        groups.setdefault(repr(workload), []).append(key)
    several = [group for group in groups.values() if len(group) > 1]
    return several or [list(settings)]


def _compare(
    first: BySeed, other: BySeed, latencies: Latencies
) -> Iterator[tuple[str, dict[str, Any]]]:
    seeds = [seed for seed in first if seed in other]
    matched = [
        _matched(*(latencies[one[seed]["folder"]] for one in (first, other))) for seed in seeds
    ]
    for metric in METRICS:
        pairs = [
            pair for seed, both in zip(seeds, matched, strict=True)
            if (pair := _values(metric, first[seed], other[seed], both)) is not None
        ]
        if not pairs:
            continue
        befores, afters, stretches = zip(*pairs, strict=True)
        differences = np.subtract(afters, befores)
        interval = bootstrap_interval(differences)
        how = f"{len(pairs)} seeds"
        if interval is None and stretches[0] is not None:
            interval, how = bootstrap_interval(stretches[0]), f"{len(stretches[0])} stretches"
        elif interval is None and metric.endswith(".p95"):
            continue
        yield metric, {
            "first": float(np.mean(befores)), "this": float(np.mean(afters)),
            "difference": float(np.mean(differences)),
            "low": interval and interval.low, "high": interval and interval.high,
            "how": interval and f"{interval.method}, {how}", "verdict": _verdict(interval),
        }


def _verdict(interval: Interval | None) -> str:
    if interval is None:
        return UNKNOWN
    if not interval.differs_from_zero:
        return SAME
    return "higher" if interval.mean > 0 else "lower"


def _values(
    metric: str, first: Mapping[str, Any], other: Mapping[str, Any], both: pl.DataFrame | None
) -> tuple[float, float, np.ndarray | None] | None:
    """A metric under both settings at one seed, and the mean differences of its stretches."""
    earlier, later = first.get(metric), other.get(metric)
    if earlier is None or later is None:
        return None  # not measured, such as the gaps of whole answers
    name, _, statistic = metric.partition(".")
    if statistic and both is not None:
        known = both.drop_nulls([name, f"{name}_right"])
        if known.is_empty():
            return None
        before, after = known[name].to_numpy(), known[f"{name}_right"].to_numpy()
        reduce = STATISTICS[statistic]
        stretches = batch_means(after - before) if statistic == "mean" else None
        return float(reduce(before)), float(reduce(after)), stretches
    return earlier, later, None


def _latencies(requests: pl.DataFrame | None) -> pl.DataFrame | None:
    if requests is None or requests.is_empty():
        return None
    known = requests.select("request_id", "prompt_tokens", "scheduled_arrival_s")
    return known.join(request_latencies(requests), on="request_id")


def _matched(before: pl.DataFrame | None, after: pl.DataFrame | None) -> pl.DataFrame | None:
    """Latencies of the requests that both runs completed, after the warm-up, by arrival.

    None where a run kept no requests, or the two did not serve the same ones.
    """
    if before is None or after is None:
        return None
    same = ["request_id", "prompt_tokens"]
    if not before.select(same).sort(same).equals(after.select(same).sort(same)):
        return None
    kept = before.filter(warmed_up(before["scheduled_arrival_s"].to_numpy()))
    both = kept.join(after, on="request_id").sort("scheduled_arrival_s", "request_id")
    completed = pl.lit("completed")
    return both.filter(pl.col("outcome") == completed, pl.col("outcome_right") == completed)
