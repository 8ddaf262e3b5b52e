"""The measuring window: which requests, tokens and iterations count.

Ramp-up and the tail, where the load is not the offered one, distort every rate; a window cuts them
off. Requests count by scheduled arrival, tokens by delivery, iterations by start.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl


@dataclass(frozen=True)
class Window:
    """An interval of the run's clock in seconds.

    A given window is half-open, so that adjoining windows share nothing; the whole run includes its
    last moment.
    """

    start_s: float
    end_s: float
    closed: Literal["left", "both"] = "left"

    def __post_init__(self) -> None:
        if self.closed == "left" and not self.end_s > self.start_s:
            raise ValueError(
                f"window=({self.start_s}, {self.end_s}) must end after it starts; "
                "give (start, end) in seconds"
            )

    @property
    def duration_s(self) -> float:
        """Its length in seconds; 0 for a run without events."""
        return self.end_s - self.start_s

    def holds(self, column: str) -> pl.Expr:
        """Whether the time in `column` lies inside; false where it is null."""
        return pl.col(column).is_between(self.start_s, self.end_s, self.closed).fill_null(False)

    def stated(self) -> Mapping[str, float | str]:
        """For `summary.json`."""
        rule = "given" if self.closed == "left" else "whole run, ramp and tail included"
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "duration_s": self.duration_s,
            "rule": rule,
        }


def whole_run(requests: pl.DataFrame) -> Window:
    """From the first scheduled arrival to the last end; vLLM's and SGLang's duration."""
    last = requests.select(pl.max_horizontal(pl.col("finished_s", "first_token_s").max())).item()
    start_s = float(requests["scheduled_arrival_s"].min() or 0.0)  # type: ignore[arg-type]
    return Window(start_s, max(start_s, last or start_s), closed="both")
