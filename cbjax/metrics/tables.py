"""The columns every run leaves behind, and the four tables that carry them.

One row per request, per iteration and per grant (what a request was given in an iteration), so that
all statistics are queries over rows and never need the process that made them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

Level = Literal["summary", "requests", "iterations", "tokens"]
LEVELS: tuple[Level, ...] = ("summary", "requests", "iterations", "tokens")

REQUEST_COLUMNS: Mapping[str, pl.DataType] = {
    "request_id": pl.Int64(),
    "class": pl.String(),
    "priority": pl.Int64(),
    "scheduled_arrival_s": pl.Float64(),
    "submitted_s": pl.Float64(),
    "visible_s": pl.Float64(),
    "admitted_s": pl.Float64(),
    "first_token_s": pl.Float64(),
    "finished_s": pl.Float64(),
    "prompt_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "cached_prompt_tokens": pl.Int64(),
    "preemptions": pl.Int64(),
    "swaps": pl.Int64(),
    "recomputed_tokens": pl.Int64(),
    "max_itl_s": pl.Float64(),
    "finish_reason": pl.String(),
    "error": pl.String(),
    "token_times_s": pl.List(pl.Float64()),
}

ITERATION_COLUMNS: Mapping[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "start_s": pl.Float64(),
    "duration_s": pl.Float64(),
    "host_s": pl.Float64(),
    "rung": pl.String(),
    "scheduled_tokens": pl.Int64(),
    "prefill_tokens": pl.Int64(),
    "decode_tokens": pl.Int64(),
    "padded_tokens": pl.Int64(),
    "running": pl.Int64(),
    "waiting": pl.Int64(),
    "backlog": pl.Int64(),
    "used_blocks": pl.Int64(),
    "free_blocks": pl.Int64(),
    "preempted": pl.Int64(),
    "admitted": pl.Int64(),
    "finished": pl.Int64(),
    "limited_by": pl.String(),
    "repeats": pl.Int64(),
}

# `kind` is "prefill", "decode", or "preempted" (zero tokens: the seat was lost in this iteration).
SCHEDULE_COLUMNS: Mapping[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "request_id": pl.Int64(),
    "seat": pl.Int64(),
    "kind": pl.String(),
    "tokens": pl.Int64(),
    "start_s": pl.Float64(),
    "duration_s": pl.Float64(),
}

MEMORY_COLUMNS: Mapping[str, pl.DataType] = {
    "iteration": pl.Int64(),
    "live_tokens": pl.Int64(),
    "block_size": pl.Int64(),
    "extra_tokens": pl.Int64(),
    "compiled": pl.Boolean(),
}


def frame(rows: list[tuple], columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A typed table from row tuples in column order; also right for no rows at all."""
    return pl.DataFrame(rows, schema=dict(columns), orient="row")


@dataclass(frozen=True)
class Tables:
    """The rows of one run.

    `schedule` (who was given what, on which seat) and `memory` (positions holding KV, padding a
    policy asked for) may be absent: an external endpoint shows neither.
    """

    requests: pl.DataFrame
    iterations: pl.DataFrame
    schedule: pl.DataFrame | None = None
    memory: pl.DataFrame | None = None

    def at_level(self, level: Level) -> "Tables":
        """Keep only what `record=level` asks for.

        Args:
            level: "summary" keeps no rows, "requests" one row per request, "iterations" adds the
                per-iteration tables, "tokens" adds every token's time.

        Returns:
            The reduced tables; dropped ones are empty but keep their columns.

        Raises:
            ValueError: the level is unknown.
        """
        if level not in LEVELS:
            raise ValueError(f"record={level!r} is unknown; use one of {', '.join(LEVELS)}")
        kept = self
        if level != "tokens" and "token_times_s" in self.requests.columns:
            kept = replace(kept, requests=kept.requests.drop("token_times_s"))
        if level in ("summary", "requests"):
            kept = replace(kept, iterations=kept.iterations.clear(), schedule=None, memory=None)
        if level == "summary":
            kept = replace(kept, requests=kept.requests.clear())
        return kept
