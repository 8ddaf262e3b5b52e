"""Requests as columns: what a recorded trace holds, and what a simulator takes.

A hundred thousand requests are a handful of NumPy arrays; no Python object is made per request
until an engine asks for a `Workload`.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace

import numpy as np

from cbjax.workload.bad_rows import BadRows
from cbjax.workload.checks import require
from cbjax.workload.segments import Segments


@dataclass(frozen=True, eq=False)
class Trace:
    """R requests in order of arrival.

    Attributes:
        name: of the format or the generator.
        arrival_s: `[R]` float64, seconds from the start of the clock.
        prompt_tokens: `[R]` int32, at least 1.
        output_tokens: `[R]` int32, at least 1; produced whatever the model says.
        duration_s: seconds that the trace covers; R over it is its rate.
        class_names: kinds of requests.
        classes: `[R]` int32, index into `class_names`.
        priority: `[R]` int32, lower is served earlier by policies that know priorities.
        segments: what prompts share; None: nothing is known, and nothing is shared.
        after: `[R]` int32, the earlier request after whose end each is due, -1 for none, or None;
            `arrival_s` is then the earliest that it may be due.
        think_s: `[R]` float64, seconds from the end of `after`, or None.
        bad_rows: rows of the file that were left out.
    """

    name: str
    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    duration_s: float
    class_names: tuple[str, ...]
    classes: np.ndarray
    priority: np.ndarray
    segments: Segments | None = None
    after: np.ndarray | None = None
    think_s: np.ndarray | None = None
    bad_rows: BadRows = field(default_factory=BadRows)

    def __post_init__(self) -> None:
        _require_one_size([self.arrival_s, self.prompt_tokens, self.output_tokens, self.classes,
                           self.priority])
        require(np.all(np.diff(self.arrival_s) >= 0) and np.isfinite(self.arrival_s).all(),
                "arrival_s", self.arrival_s[:8], "give finite times in order of arrival")
        for name in ("prompt_tokens", "output_tokens"):
            lengths = getattr(self, name)
            require(not len(lengths) or lengths.min() >= 1, name,
                    lengths[:8], "every length must be at least 1")
        require(self.segments is None or len(self.segments.offsets) == len(self) + 1,
                "segments", self.segments, "give those of every request")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate(self) -> float | None:
        """Mean arrivals per second; None where the trace covers no time."""
        return len(self) / self.duration_s if self.duration_s > 0 else None

    def take(self, rows: np.ndarray) -> "Trace":
        """Some of the requests, by index in order of arrival."""
        return replace(
            self, arrival_s=self.arrival_s[rows], prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows], classes=self.classes[rows],
            priority=self.priority[rows],
            segments=None if self.segments is None else self.segments.take(rows),
            after=None if self.after is None else _follow(self.after, rows),
            think_s=None if self.think_s is None else self.think_s[rows],
        )


def trace_of_columns(
    name: str, arrival_s: np.ndarray, prompt_tokens: np.ndarray, output_tokens: np.ndarray, *,
    class_of: Sequence[str] | np.ndarray | None = None, priority: np.ndarray | None = None,
    segments: Segments | None = None, after: np.ndarray | None = None,
    think_s: np.ndarray | None = None, bad_rows: BadRows | None = None,
) -> Trace:
    """A trace from columns in any order of rows; rows of one time keep their order.

    Args:
        name: names the trace, and the class of its requests where `class_of` is None.
        arrival_s: `[R]` seconds on any clock.
        prompt_tokens: `[R]`.
        output_tokens: `[R]`.
        class_of: `[R]` names.
        priority: `[R]`; None: all 0.
        segments: what prompts share.
        after, think_s: `[R]`, as in `Trace`, by row.
        bad_rows: what was left out.

    Raises:
        ValueError: columns of different lengths, times that are not finite, or lengths below 1.
    """
    arrival_s = np.asarray(arrival_s, np.float64)
    columns = (arrival_s, prompt_tokens, output_tokens, class_of, priority)
    _require_one_size([column for column in columns if column is not None])
    if class_of is None:
        class_of = np.full(len(arrival_s), name)
    names, classes = np.unique(np.asarray(class_of, str), return_inverse=True)
    order = np.argsort(arrival_s, kind="stable")
    return Trace(
        name=name, arrival_s=arrival_s[order],
        prompt_tokens=np.asarray(prompt_tokens, np.int32)[order],
        output_tokens=np.asarray(output_tokens, np.int32)[order],
        duration_s=float(np.ptp(arrival_s)) if len(arrival_s) else 0.0,
        class_names=tuple(names.tolist()), classes=classes.astype(np.int32)[order],
        priority=np.zeros(len(order), np.int32) if priority is None
        else np.asarray(priority, np.int32)[order],
        segments=segments and segments.take(order),
        after=None if after is None else _follow(after, order),
        think_s=None if think_s is None else think_s[order], bad_rows=bad_rows or BadRows(),
    )


def _follow(after: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The same requests by their places in `rows`; whose earlier one is not there has none."""
    place = np.full(len(after) + 1, -1, np.int32)
    place[rows] = np.arange(len(rows))
    return place[after[rows]]


def _require_one_size(columns: Sequence[Sized]) -> None:
    sizes = sorted({len(column) for column in columns})
    require(len(sizes) == 1, "trace", sizes, "give columns of one length")
