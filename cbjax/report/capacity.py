"""What a search for capacities found, one line per setting."""

import math

import polars as pl
from rich import box
from rich.table import Table

from cbjax.metrics import mean_interval
from cbjax.report.format import significant


def capacities(found: pl.DataFrame) -> pl.DataFrame:
    """One row per setting, in the order of the study.

    Args:
        found: from `cbjax.results.read_capacity`.

    Returns:
        label, policy, `capacity` (mean over seeds of the greatest load that passed, requests/s),
        `margin` (half the width of its 95 % confidence interval; null for one seed), `lowest` and
        `highest` (of the passing ends over the seeds; for one seed the bracket), `seeds`, and
        `gave_way` (the limits that did not hold at the least failing load, most frequent first).
    """
    rows = []
    for (label,), group in found.group_by("label", maintain_order=True):
        seeds = group.unique("seed", maintain_order=True)
        lows = seeds["low"].to_numpy()
        several = len(lows) > 1
        highs = lows if several else seeds["high"].fill_nan(None).to_numpy()
        ends = [float(high) if math.isfinite(high) else float(low)
                for high, low in zip(highs, lows, strict=True)]
        mean = mean_interval(lows)
        gave_way = group.filter((pl.col("rate") == pl.col("high")) & ~pl.col("held"))["limit"]
        frequent = gave_way.value_counts(sort=True)["limit"].to_list()
        rows.append({
            "label": label, "policy": group["policy"][0], "capacity": float(lows.mean()),
            "margin": mean and mean.high - mean.mean, "lowest": float(lows.min()),
            "highest": max(ends), "seeds": len(lows), "gave_way": ", ".join(frequent),
        })
    return pl.DataFrame(rows, schema_overrides={"margin": pl.Float64})


def capacity_table(found: pl.DataFrame, title: str = "") -> Table:
    """Settings by capacity, greatest first.

    Args:
        found: from `cbjax.results.read_capacity`.
        title: above the table.
    """
    ranked = capacities(found).sort("capacity", descending=True, maintain_order=True)
    table = Table(title=title or None, box=box.SIMPLE_HEAD)
    table.add_column("setting")
    table.add_column("capacity (requests/s)", justify="right")
    several = (ranked["seeds"] > 1).any()
    table.add_column("95 % interval" if several else "fails at", justify="right")
    table.add_column("gave way")
    for row in ranked.to_dicts():
        if row["margin"] is not None:
            spread = f"± {significant(row['margin'])}"
        else:
            spread = significant(row["highest"]) if row["highest"] > row["lowest"] else "–"
        table.add_row(row["label"], significant(row["capacity"]), spread, row["gave_way"] or "–")
    return table
