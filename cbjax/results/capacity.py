"""The rows that a search for capacities leaves in its study's folder."""

from pathlib import Path

import polars as pl

CAPACITY = "capacity.parquet"


def write_capacity(folder: Path, rows: pl.DataFrame) -> None:
    """Keep the rows of `cbjax.experiment.search` in a study's folder."""
    rows.write_parquet(folder / CAPACITY)


def has_capacity(folder: Path) -> bool:
    """Whether the study searched for capacities."""
    return (folder / CAPACITY).is_file()


def read_capacity(folder: Path) -> pl.DataFrame:
    """A row per setting, seed, load tried and limit.

    Raises:
        FileNotFoundError: the study searched for nothing.
    """
    if not has_capacity(folder):
        raise FileNotFoundError(f"{folder} holds no {CAPACITY}: its study.search was not set")
    return pl.read_parquet(folder / CAPACITY)
