"""`python -m cbjax.collect results/...`: many runs as one table, and as a table of a paper."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from cbjax.report.averages import latex_table, markdown_table
from cbjax.results import average_seeds, collect_runs

ROWS = (".parquet", ".csv")
TABLES = {".md": markdown_table, ".tex": latex_table}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, or 2 for something that is not there."""
    given = _parser().parse_args(arguments)
    try:
        rows = _each_once(
            pl.concat([collect_runs(path) for path in given.paths], how="diagonal_relaxed")
        )
        if not len(rows):
            raise ValueError(f"no finished runs in {', '.join(given.paths)}")
        metrics = given.metrics.split(",") if given.metrics else None
        averages = average_seeds(rows, metrics)
        for path in map(Path, given.to):
            _write(path, rows, averages)
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown_table(averages))
    _say_what_is_wrong(rows)
    for path in given.to:
        print(f"written {path}")
    return 0


def _each_once(rows: pl.DataFrame) -> pl.DataFrame:
    """Without what two of the paths have in common; hashes name only the runs of studies."""
    known = pl.when(pl.col("study_hash").is_null()).then("folder").otherwise("run_hash")
    return rows.filter(known.is_first_distinct())


def _write(path: Path, rows: pl.DataFrame, averages: pl.DataFrame) -> None:
    if path.suffix == ".parquet":
        rows.write_parquet(path)
    elif path.suffix == ".csv":
        # CSV has no lists; the names of the settings that differ become one text.
        rows.with_columns(pl.col("differing_keys").list.join(" ")).write_csv(path)
    elif path.suffix in TABLES:
        path.write_text(TABLES[path.suffix](averages), encoding="utf-8")
    else:
        known = ", ".join([*ROWS, *TABLES])
        raise ValueError(f"--to {path}: the ending says what is written; use one of {known}")


def _say_what_is_wrong(rows: pl.DataFrame) -> None:
    failed = rows.filter(pl.col("error").is_not_null())
    for label, error in failed.select("label", "error").iter_rows():
        print(f"failed  {label}: {error}")
    apart = rows.filter(pl.col("differs"))["differing_keys"].explode().unique().sort()
    if len(apart):
        print(f"warning: some runs differ outside the swept settings, in {', '.join(apart)}; see "
              "the columns differs and differing_keys")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m cbjax.collect", description=__doc__)
    parser.add_argument("paths", nargs="+", help="runs, studies, or folders of them")
    parser.add_argument(
        "--to", action="append", default=[], metavar="FILE",
        help="all rows (.parquet, .csv), or the averages over seeds (.md, .tex); may be repeated",
    )
    parser.add_argument(
        "--metrics", help="columns to average, e.g. ttft_s.p95,itl_s.p99 (default: the usual ones)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
