"""Azure LLM inference traces of 2023 and 2024: times and token counts, nothing of the contents.

2023 writes seven digits behind the second and no zone, 2024 six and `+00:00`. Both hold only
requests that succeeded. CC-BY-4.0.

Source: Patel et al., Splitwise, ISCA 2024 (2023); Stojkovic et al., DynamoLLM, HPCA 2025 (2024).
"""

from pathlib import Path

import polars as pl

from cbjax.workload.formats import Wanted
from cbjax.workload.formats._rows import csv_rows, field_count, judged, lengths, whole
from cbjax.workload.trace import Trace, trace_of_columns

DOWNLOAD = (
    "download AzureLLMInferenceTrace_conv.csv or AzureLLMInferenceTrace_code.csv from "
    "github.com/Azure/AzurePublicDataset (folder data; the week of 2024 is linked from its "
    "AzureLLMInferenceDataset2024.md)"
)
FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path, wanted: Wanted) -> Trace:
    """Read a trace of either year; see `cbjax.workload.read_trace`."""
    rows = csv_rows(path, FIELDS, wanted.limit)
    stamp = pl.col("TIMESTAMP").str.replace(r"(Z|\+00:00)$", "")
    rows = rows.with_columns(
        stamp.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
        .dt.timestamp("ns").alias("ns")
    )
    good, bad_rows = judged(rows, [
        field_count(len(FIELDS)),
        (pl.col("ns").is_null(), "TIMESTAMP is no time such as 2023-11-16 18:15:46.6805900"),
        *lengths("ContextTokens", "GeneratedTokens"),
    ])
    ns = good["ns"].to_numpy()
    return trace_of_columns(
        "azure", (ns - ns.min()) / 1e9 if len(ns) else ns,
        good.select(whole("ContextTokens")).to_series().to_numpy(),
        good.select(whole("GeneratedTokens")).to_series().to_numpy(), bad_rows=bad_rows,
    )
