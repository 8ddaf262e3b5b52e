"""Rows of a file that hold no request: counted, shown, and refused or left out by choice."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from cbjax.workload.checks import require

OnBadRow = Literal["refuse", "skip"]

ROWS_SHOWN = 5
EXCERPT = 60


@dataclass(frozen=True)
class BadRow:
    """A row without a usable request: its line number from 1, why, and how it begins."""

    line: int
    reason: str
    excerpt: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}: {self.excerpt}"


@dataclass(frozen=True)
class BadRows:
    """What was wrong with a file, without keeping every row of it.

    Attributes:
        by_reason: number of rows per reason.
        shown: the first few of them.
    """

    by_reason: Mapping[str, int] = field(default_factory=dict)
    shown: tuple[BadRow, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[BadRow]) -> "BadRows":
        """Count rows by their reason."""
        listed = list(rows)
        by_reason: dict[str, int] = {}
        for row in listed:
            by_reason[row.reason] = by_reason.get(row.reason, 0) + 1
        return cls(by_reason, tuple(listed[:ROWS_SHOWN]))

    def __len__(self) -> int:
        return sum(self.by_reason.values())

    def __add__(self, other: "BadRows") -> "BadRows":
        reasons = {*self.by_reason, *other.by_reason}
        return BadRows(
            {why: self.by_reason.get(why, 0) + other.by_reason.get(why, 0) for why in reasons},
            (self.shown + other.shown)[:ROWS_SHOWN],
        )

    def __str__(self) -> str:
        reasons = [f"  {count} x {reason}" for reason, count in self.by_reason.items()]
        counts = reasons if len(reasons) > 1 or len(self) > ROWS_SHOWN else []
        return "\n".join([*counts, *(f"  {row}" for row in self.shown)])


def settle(path: str | Path, bad_rows: BadRows, on_bad_row: OnBadRow) -> None:
    """Refuse a file for its bad rows, or warn that they were left out.

    Raises:
        ValueError: there are any, and `on_bad_row` is `refuse`.
    """
    if not bad_rows:
        return
    message = f"path = {str(path)!r}: {len(bad_rows)} bad rows, of them\n{bad_rows}"
    if on_bad_row == "refuse":
        raise ValueError(f"{message}\nmend them, or leave them out with on_bad_row='skip'")
    warnings.warn(f"{message}\nwere left out", stacklevel=3)


def require_choice(on_bad_row: str) -> None:
    """Refuse anything but the two choices.

    Raises:
        ValueError: it is.
    """
    require(on_bad_row in get_args(OnBadRow), "on_bad_row", on_bad_row,
            f"use one of {get_args(OnBadRow)}")
