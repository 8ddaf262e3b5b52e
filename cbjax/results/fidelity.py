"""The rows that a comparison of engine and simulator leaves in its study's folder."""

from pathlib import Path

import polars as pl

FIDELITY = "fidelity.parquet"


def write_fidelity(folder: Path, rows: pl.DataFrame) -> None:
    """Keep the rows of `cbjax.experiment.fidelity` in a study's folder."""
    rows.write_parquet(folder / FIDELITY)


def read_fidelity(folder: Path) -> pl.DataFrame:
    """A row per load, simulation and metric.

    Raises:
        FileNotFoundError: the study compared nothing.
    """
    if not (folder / FIDELITY).is_file():
        raise FileNotFoundError(f"{folder} holds no {FIDELITY}: its study.fit was not set")
    return pl.read_parquet(folder / FIDELITY)
