"""Rows of text files, judged one by one: what every format shares.

CSV is read as lines and split afterwards, so that a row with a field too many is one bad row and
not the end of the file, and line numbers are those of the file.
"""

import csv
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from cbjax.workload.bad_rows import EXCERPT, ROWS_SHOWN, BadRow, BadRows
from cbjax.workload.checks import require

_MOST_TOKENS = 2**31 - 1
_NO_SEPARATOR = "\x1f"

Parsed = TypeVar("Parsed")
Check = tuple[pl.Expr, str]
"""Where it holds (or is null), a row is bad, for this reason."""


def csv_rows(
    path: Path, fields: Sequence[str] | None = None, limit: int | None = None
) -> pl.DataFrame:
    """A CSV file with its header, every field as text.

    Args:
        path: the file, gzipped or not.
        fields: those it must have.
        limit: most rows.

    Returns:
        A column per field of the header, `#line`, `#text`, and `#count`, the fields of the row.

    Raises:
        ValueError: the file is empty, or its header lacks a field.
    """
    lines = _lines(path, None if limit is None else limit + 1)
    require(len(lines), "path", str(path), "the file is empty; give one with a header and rows")
    header = [name.strip() for name in _split(lines["#text"][0])]
    require(len(set(header)) == len(header), "path", str(path),
            f"its header has a field twice: {', '.join(header)}; give each a name of its own")
    for field in fields or ():
        require(field in header, "path", str(path),
                f"its header has no field {field!r}; it has {', '.join(header)}: use the format it "
                "is of")
    rows = lines.slice(1).filter(pl.col("#text").str.strip_chars() != "")
    if rows["#text"].str.contains('"', literal=True).any():
        parts = pl.Series([_split(text) for text in rows["#text"]], dtype=pl.List(pl.Utf8))
    else:
        parts = rows["#text"].str.split(",")
    found = [
        parts.list.get(place, null_on_oob=True).str.strip_chars().alias(name)
        for place, name in enumerate(header)
    ]
    return rows.with_columns(*found, parts.list.len().alias("#count"))


def field_count(fields: int) -> Check:
    """A row has as many fields as the header."""
    return pl.col("#count") != fields, f"not {fields} fields"


def whole(field: str) -> pl.Expr:
    """A field as a whole number from 0, null where it is none."""
    number = pl.col(field).cast(pl.Float64, strict=False)
    fits = (number == number.floor()) & number.is_between(0, _MOST_TOKENS)
    return pl.when(fits).then(number).cast(pl.Int64)


def lengths(*fields: str) -> list[Check]:
    """Each field is a whole number of tokens from 1."""
    return [(whole(field).fill_null(0) < 1, f"{field} is no whole number from 1")
            for field in fields]


def judged(rows: pl.DataFrame, checks: Sequence[Check]) -> tuple[pl.DataFrame, BadRows]:
    """The good rows, and the bad ones with the first reason that holds."""
    reasons = [
        pl.when(bad.fill_null(True)).then(pl.lit(reason)) for bad, reason in checks
    ]
    rows = rows.with_columns(pl.coalesce(reasons).alias("#reason"))
    bad = rows.filter(pl.col("#reason").is_not_null())
    shown = tuple(
        BadRow(line, reason, text[:EXCERPT])
        for line, reason, text in bad.select("#line", "#reason", "#text").head(ROWS_SHOWN).rows()
    )
    counts = bad.group_by("#reason", maintain_order=True).len()
    return (
        rows.filter(pl.col("#reason").is_null()).drop("#reason"),
        BadRows(dict(counts.rows()), shown),
    )


def json_rows(
    path: Path, parse: Callable[[Mapping[str, Any]], Parsed], limit: int | None = None
) -> tuple[list[tuple[int, Parsed]], BadRows]:
    """The objects of a JSON Lines file, with their line numbers.

    Args:
        path: the file, gzipped or not.
        parse: makes a row of an object; raises ValueError for one that holds no request.
        limit: most lines to look at.
    """
    good: list[tuple[int, Parsed]] = []
    bad: list[BadRow] = []
    opened = gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")
    with opened as file:
        for line, raw in enumerate(file, start=1):
            if limit is not None and line > limit:
                break
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8-sig"))
                if not isinstance(row, dict):
                    raise ValueError("no JSON object")
                good.append((line, parse(row)))
            except (json.JSONDecodeError, UnicodeDecodeError):
                bad.append(BadRow(line, "no JSON", _excerpt(raw)))
            except ValueError as problem:
                bad.append(BadRow(line, str(problem), _excerpt(raw)))
    return good, BadRows.of(bad)


def whole_of(row: Mapping[str, Any], field: str) -> int:
    """A whole number of tokens from 1 out of a JSON row.

    Raises:
        ValueError: it is none.
    """
    value = row.get(field)
    if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
        raise ValueError(f"{field} is no whole number from 1")
    return value


def _lines(path: Path, limit: int | None) -> pl.DataFrame:
    try:
        lines = pl.read_csv(
            path, has_header=False, separator=_NO_SEPARATOR, quote_char=None, infer_schema=False,
            encoding="utf8-lossy", new_columns=["#text"], n_rows=limit, truncate_ragged_lines=True,
        )
    except pl.exceptions.NoDataError:
        return pl.DataFrame({"#text": [], "#line": []})
    text = pl.col("#text").fill_null("").str.strip_chars_end("\r").str.strip_prefix("\ufeff")
    return lines.select(text, pl.int_range(1, pl.len() + 1).alias("#line"))


def _split(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _excerpt(raw: bytes) -> str:
    return raw[:EXCERPT].decode("utf-8", errors="replace").rstrip()
