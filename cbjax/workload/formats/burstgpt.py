"""BurstGPT: months of requests to ChatGPT and GPT-4 at a university, in three layouts.

Files 1 and 2 have six columns, file 3 a session and an elapsed time between the first two; fields
are therefore found by name. Times are whole seconds from midnight of the first day. A response of
no tokens is a failed request, and in file 1 one in twelve has no request tokens: both are bad rows
here, so the published files need `on_bad_row="skip"`. The elapsed time is that of the recorded
system from end to end, and is not used. CC-BY-4.0.

Source: Wang et al., BurstGPT, KDD 2025.
"""

from pathlib import Path

import polars as pl

from cbjax.workload.checks import require
from cbjax.workload.formats import Wanted
from cbjax.workload.formats._rows import csv_rows, judged, lengths, whole
from cbjax.workload.trace import Trace, trace_of_columns

DOWNLOAD = (
    "download BurstGPT_1.csv (or _2, _3, or one without failures) from github.com/HPMLL/BurstGPT "
    "(folder data, or its releases)"
)
FIELDS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")


def read(
    path: Path, wanted: Wanted, model: str | None = None, log_type: str | None = None
) -> Trace:
    """Read one of the three files; see `cbjax.workload.read_trace`.

    Args:
        path: the file.
        wanted: what of it will be used.
        model: only requests to this one, e.g. "ChatGPT" or "GPT-4".
        log_type: only these, "Conversation log" or "API log". The class of every request.
    """
    rows = csv_rows(path, FIELDS, wanted.limit)
    width = len(rows.columns) - 3  # what `csv_rows` adds
    seconds = pl.col("Timestamp").cast(pl.Float64, strict=False)
    good, bad_rows = judged(rows, [
        (pl.col("#count") != width, f"not {width} fields"),
        (~seconds.is_finite() | (seconds < 0), "Timestamp is no number of seconds"),
        (whole("Response tokens") == 0, "Response tokens is 0: the request failed"),
        (whole("Request tokens") == 0, "Request tokens is 0"),
        *lengths("Request tokens", "Response tokens"),
    ])
    for field, value in (("Model", model), ("Log Type", log_type)):
        if value is not None:
            known = good[field].unique().sort().to_list()
            option = field.lower().replace(" ", "_")
            require(value in known, f"options.{option}", value,
                    f"no row has it; use one of {', '.join(map(str, known))}")
            good = good.filter(pl.col(field) == value)
    arrival = good.select(seconds).to_series().to_numpy()
    return trace_of_columns(
        "burstgpt", arrival - arrival.min() if len(arrival) else arrival,
        good.select(whole("Request tokens")).to_series().to_numpy(),
        good.select(whole("Response tokens")).to_series().to_numpy(),
        class_of=good["Log Type"].to_numpy(), bad_rows=bad_rows,
    )
