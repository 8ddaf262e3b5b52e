"""The cells of an experiment before they run, for the terminal."""

import polars as pl
from rich import box
from rich.table import Table

from cbjax.report.format import ABSENT, significant


def estimates_table(cells: pl.DataFrame) -> Table:
    """A row per cell with what it would take.

    Args:
        cells: from `cbjax.experiment.estimate_cells`.
    """
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("cell", "requests", "tokens", "time (s)", "memory (GB)", "by"):
        left = header in ("cell", "by")
        table.add_column(header, justify="left" if left else "right", overflow="fold")
    for row in cells.iter_rows(named=True):
        several = f"{row['runs']} x " if row["runs"] > 1 else ""
        table.add_row(
            row["cell"], f"{several}{row['requests']:,}", f"{row['tokens']:,}",
            ABSENT if row["finished"] else _number(row["seconds"], 1.0),
            _number(row["memory_bytes"], 1e-9),
            "finished before" if row["finished"] else row["by"],
        )
    return table


def _number(value: float | None, unit: float) -> str:
    return "unknown" if value is None else significant(value * unit)
