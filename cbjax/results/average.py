"""Runs that differ in their seeds only, as one row: means, and how sure they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from cbjax.metrics import mean_interval
from cbjax.results.labels import parts_of

METRICS = (
    "output_tokens_per_s", "ttft_s.p50", "ttft_s.p95", "itl_s.p50", "itl_s.p99", "e2e_s.p95",
    "slo_attainment", "preemptions", "padding_fraction",
)


def average_seeds(rows: pl.DataFrame, metrics: Sequence[str] | None = None) -> pl.DataFrame:
    """Average runs over their seeds.

    Args:
        rows: from `collect_runs`; rows of failed runs count for nothing.
        metrics: columns to average; by default the usual ones that some run has.

    Returns:
        A row per setting, in the order of `rows`: the parts of the runs' labels as columns
        (numbers where all are), `policy`, `seeds`, the number of runs; and for every metric `m` its
        mean as `m`, and `m.low` and `m.high`, Student's 95 % interval (null for one seed).

    Raises:
        ValueError: a metric that no run has.
    """
    rows = rows.filter(pl.col("error").is_null())
    wanted = METRICS if metrics is None else metrics
    known = [name for name in wanted if name in rows.columns and rows[name].count()]
    if metrics is not None and len(known) < len(metrics):
        missing = next(name for name in metrics if name not in known)
        raise ValueError(
            f"metric {missing!r}: no run here has it; the columns of collect_runs are their names"
        )
    made = [
        _average(group, known) for _, group in rows.group_by("setting_hash", maintain_order=True)
    ]
    names = dict.fromkeys(name for parts, _ in made for name in parts)
    columns = [_typed(name, [parts.get(name) for parts, _ in made]) for name in names]
    numbers = pl.DataFrame([means for _, means in made], infer_schema_length=None)
    return pl.DataFrame(columns).hstack(numbers.select(
        name for name in numbers.columns if name not in names
    ))


def _average(
    group: pl.DataFrame, metrics: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """The parts of a group's label, and its numbers."""
    means: dict[str, Any] = {"policy": group["policy"][0], "seeds": len(group)}
    for name in metrics:
        values = group[name].drop_nulls().cast(pl.Float64)
        interval = mean_interval(values.to_numpy())
        means[name] = values.mean()
        means[f"{name}.low"] = interval.low if interval else None
        means[f"{name}.high"] = interval.high if interval else None
    return parts_of(str(group["label"][0])), means


def _typed(name: str, texts: list[str | None]) -> pl.Series:
    """A column of numbers if every text is one."""
    column = pl.Series(name, texts, dtype=pl.String)
    for kind in (pl.Int64, pl.Float64):
        numbers = column.cast(kind, strict=False)
        if numbers.count() and numbers.null_count() == column.null_count():
            return numbers
    return column
