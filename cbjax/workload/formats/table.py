"""Your own requests: CSV or JSON Lines with a row per request and named columns.

The columns are `arrival_s`, `prompt_tokens`, `output_tokens`, and, where the file has them,
`class_name` and `priority`. Other names are given as options; so is a column of dates.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from cbjax.workload.bad_rows import BadRows
from cbjax.workload.checks import require
from cbjax.workload.formats import Wanted
from cbjax.workload.formats._rows import Check, csv_rows, json_rows, judged, lengths, whole
from cbjax.workload.trace import Trace, trace_of_columns

DOWNLOAD = (
    "give a .csv or .jsonl file with the columns arrival_s, prompt_tokens and output_tokens, or "
    "name yours with options.columns"
)
NEEDED = ("arrival_s", "prompt_tokens", "output_tokens")
OPTIONAL = ("class_name", "priority")
TimeUnit = Literal["s", "ms", "us", "ns", "date"]
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NONE_TOO_LARGE = 2**31


def read(
    path: Path, wanted: Wanted, columns: Mapping[str, str | None] | None = None,
    time_unit: TimeUnit = "s",
) -> Trace:
    """Read a table; see `cbjax.workload.read_trace`.

    Args:
        path: `.csv` or `.jsonl`, gzipped or not.
        wanted: what of it will be used.
        columns: our name -> the file's, for those that differ. `{"arrival_s": None}` says that
            there are no times: all requests arrive at once unless arrivals are drawn.
        time_unit: of `arrival_s`; "date" reads dates with a time.
    """
    require(time_unit in get_args(TimeUnit), "options.time_unit", time_unit,
            f"use one of {get_args(TimeUnit)}")
    columns = dict(columns or {})
    for ours in columns:
        require(ours in NEEDED + OPTIONAL, "options.columns", ours,
                f"use some of {', '.join(NEEDED + OPTIONAL)}")
    rows, not_rows = _rows(path, wanted.limit)
    name_of = {ours: columns.get(ours, ours) for ours in NEEDED}
    name_of |= {ours: columns.get(ours, ours) for ours in OPTIONAL
                if ours in columns or ours in rows.columns}
    for ours, theirs in name_of.items():
        require(theirs in rows.columns or (theirs is None and ours == "arrival_s"),
                f"options.columns.{ours}", theirs,
                f"the file has no such column; use one of {', '.join(_fields(rows))}")
    arrival, prompt, output = (name_of[ours] for ours in NEEDED)
    assert prompt is not None and output is not None
    times = pl.lit(0.0) if arrival is None else _seconds(arrival, time_unit)
    rows = rows.with_columns(times.alias("#s"))
    checks: list[Check] = [
        (pl.col("#count") != len(_fields(rows)), f"not {len(_fields(rows))} fields"),
        (~pl.col("#s").is_finite(), f"{arrival} is no time in {time_unit!r}"),
        *lengths(prompt, output),
    ]
    if priority := name_of.get("priority"):
        number = pl.col(priority).cast(pl.Float64, strict=False)
        checks.append(((number != number.round()) | (number.abs() >= _NONE_TOO_LARGE),
                       f"{priority} is no whole number"))
    good, bad_rows = judged(rows, checks)
    seconds = good["#s"].to_numpy()
    kind = name_of.get("class_name")
    return trace_of_columns(
        "table", seconds - seconds.min() if len(seconds) else seconds,
        good.select(whole(prompt)).to_series().to_numpy(),
        good.select(whole(output)).to_series().to_numpy(),
        class_of=good[kind].fill_null("default").to_numpy() if kind else None,
        priority=good[priority].cast(pl.Float64).to_numpy().astype(np.int64) if priority else None,
        bad_rows=not_rows + bad_rows,
    )


def _rows(path: Path, limit: int | None) -> tuple[pl.DataFrame, BadRows]:
    """Every field as text, with `#line`, `#text` and `#count` beside them."""
    name = path.name.lower().removesuffix(".gz")
    require(name.endswith((".csv", ".jsonl", ".ndjson")), "path", str(path),
            "its ending does not tell the format; use .csv or .jsonl")
    if name.endswith(".csv"):
        return csv_rows(path, limit=limit), BadRows()

    def as_text(row: Mapping[str, Any]) -> dict[str, str | None]:
        return {key: value if isinstance(value, str | None) else json.dumps(value)
                for key, value in row.items()}

    numbered, bad_rows = json_rows(path, as_text, limit)
    fields = list(dict.fromkeys(field for _, row in numbered for field in row))
    columns: dict[str, Any] = {
        field: pl.Series([row.get(field) for _, row in numbered], dtype=pl.Utf8)
        for field in fields
    }
    columns["#line"] = [line for line, _ in numbered]
    columns["#text"] = [json.dumps(row) for _, row in numbered]
    columns["#count"] = [len(fields)] * len(numbered)  # an object may leave fields out
    return pl.DataFrame(columns), bad_rows


def _fields(rows: pl.DataFrame) -> list[str]:
    return [name for name in rows.columns if not name.startswith("#")]


def _seconds(column: str, time_unit: TimeUnit) -> pl.Expr:
    if time_unit == "date":
        moment = pl.col(column).str.to_datetime(time_unit="ns", time_zone="UTC", strict=False)
        return moment.dt.timestamp("ns").cast(pl.Float64) * 1e-9
    return pl.col(column).cast(pl.Float64, strict=False) * _SECONDS[time_unit]
