"""ServeGen: clients of a cloud service, each with its rate, burstiness and lengths by the hour.

Not a recording: per client and window of ten minutes, gaps are drawn from a Gamma or Weibull
distribution; prompt and output lengths from the histograms of the six hours around. Arrivals
follow from the seed, and each window has a stream of its own, so that a longer workload begins with
the shorter one and other clients change nothing. A renewal process starts anew in every window. For
reasoning models the output counts the reasoning. Apache-2.0.

Source: Xiang et al., ServeGen, 2025; alibaba/ServeGen.
"""

import ast
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cbjax.workload.bad_rows import EXCERPT, BadRow, BadRows
from cbjax.workload.checks import require
from cbjax.workload.formats import Wanted
from cbjax.workload.streams import Stream, generator
from cbjax.workload.trace import Trace, trace_of_columns

DOWNLOAD = (
    "give a folder of clients (chunk-N-trace.csv beside chunk-N-dataset.json), such as "
    "data/language/m-small of github.com/alibaba/ServeGen"
)
LENGTHS_WINDOW_S = 21_600
FIELDS = ("input_tokens", "output_tokens")


@dataclass(frozen=True)
class Window:
    """A client's arrivals from `start_s` on: family of the gaps, their shape and scale."""

    start_s: int
    family: str
    shape: float
    scale_s: float


def read(path: Path, wanted: Wanted, clients: Sequence[int] | None = None) -> Trace:
    """Draw the requests of some clients; see `cbjax.workload.read_trace`.

    Args:
        path: the folder.
        wanted: `duration_s` is needed; `start_s` counts from the first window.
        clients: their numbers; None takes all in the folder.
    """
    duration_s = wanted.duration_s
    require(duration_s is not None and duration_s > 0, "duration_s", duration_s,
            "clients send for as long as asked; give seconds above 0, such as 3600")
    found = _clients(path)
    chosen = sorted(found) if clients is None else list(clients)
    for one in chosen:
        require(one in found, "options.clients", one, f"use some of {sorted(found)}")
    assert duration_s is not None
    end_s = wanted.start_s + duration_s
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, int]] = []
    bad: list[BadRow] = []
    for number in chosen:
        client = Client(number, path)
        windows, broken = client.windows
        bad += broken
        span = _spacing(windows)
        for window in windows:
            if window.start_s + span <= wanted.start_s or window.start_s >= end_s:
                continue
            rng = generator(wanted.seed, Stream.CLIENTS, number, window.start_s)
            times = window.start_s + _arrivals(window, span, rng)
            try:
                prompts, outputs = (client.draw(field, window.start_s, len(times), rng)
                                    for field in FIELDS)
            except ValueError as problem:
                bad.append(BadRow(window.start_s // span + 1, str(problem), f"client {number}"))
                continue
            parts.append((times, prompts, outputs, number))
    times, prompts, outputs = (
        np.concatenate([part[place] for part in parts] or [np.zeros(0)]) for place in range(3)
    )
    names = np.repeat([f"client {part[3]}" for part in parts], [len(part[0]) for part in parts])
    inside = (times >= wanted.start_s) & (times < end_s)
    return trace_of_columns(
        "servegen", times[inside], prompts[inside], outputs[inside], class_of=names[inside],
        bad_rows=BadRows.of(bad),
    )


@dataclass(frozen=True)
class Client:
    """One client's two files."""

    number: int
    folder: Path

    @cached_property
    def windows(self) -> tuple[list[Window], list[BadRow]]:
        """Windows with arrivals, and the rows that are none."""
        good, bad = [], []
        with (self.folder / f"chunk-{self.number}-trace.csv").open(newline="") as file:
            for line, row in enumerate(csv.reader(file), start=1):
                try:
                    window = _window(row)
                except ValueError as problem:
                    excerpt = f"client {self.number}: {','.join(row)}"[:EXCERPT]
                    bad.append(BadRow(line, str(problem), excerpt))
                else:
                    good += [window] if window else []
        return good, bad

    def draw(
        self, field: str, start_s: int, count: int, rng: np.random.Generator
    ) -> np.ndarray:
        """`count` lengths in tokens, from the histogram of the time of day.

        Raises:
            ValueError: there is no histogram for it.
        """
        values, chances = self._histogram(field, start_s // LENGTHS_WINDOW_S * LENGTHS_WINDOW_S)
        return values[np.searchsorted(chances, rng.random(count) * chances[-1], side="right")]

    def _histogram(self, field: str, start_s: int) -> tuple[np.ndarray, np.ndarray]:
        """Lengths, and their chances summed up."""
        place = (field, start_s)
        if place not in self._known:
            # A dictionary as Python writes it, inside a JSON string.
            chances = ast.literal_eval(self._dataset.get(str(start_s), {}).get(field, "{}"))
            kept = {int(length): chance for length, chance in chances.items() if length >= 1}
            if not sum(kept.values()) > 0:
                raise ValueError(f"no {field} for the window from {start_s} s")
            self._known[place] = np.array(list(kept)), np.cumsum(list(kept.values()))
        return self._known[place]

    @cached_property
    def _known(self) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
        return {}

    @cached_property
    def _dataset(self) -> Mapping[str, Mapping[str, str]]:
        file = self.folder / f"chunk-{self.number}-dataset.json"
        return json.loads(file.read_text(encoding="utf-8"))


def _clients(folder: Path) -> set[int]:
    """Numbers of the clients with both files."""
    require(folder.is_dir(), "path", str(folder), f"this is no folder; {DOWNLOAD}")
    names = {file.name for file in folder.iterdir()}
    numbers = [re.fullmatch(r"chunk-(\d+)-trace\.csv", name) for name in names]
    found = {int(match[1]) for match in numbers if match}
    whole = {number for number in found if f"chunk-{number}-dataset.json" in names}
    require(whole, "path", str(folder), f"there are no clients in it; {DOWNLOAD}")
    return whole


def _window(row: Sequence[str]) -> Window | None:
    """One row of a trace file; None where the client sends nothing."""
    try:
        start_s, rate = int(float(row[0])), float(row[1])
        if rate == 0:
            return None
        window = Window(start_s, row[3], float(row[4]), float(row[5]))
    except (ValueError, IndexError):
        raise ValueError("not start, rate, CV, family, shape and scale") from None
    if window.family not in ("Gamma", "Weibull"):
        raise ValueError("a family that is neither Gamma nor Weibull")
    if not (0 < window.shape < np.inf and 0 < window.scale_s < np.inf):
        raise ValueError("shape or scale is not above 0")
    return window


def _spacing(windows: Sequence[Window]) -> int:
    """Seconds of a window: the least step between starts."""
    starts = np.unique([window.start_s for window in windows])
    return int(np.diff(starts).min()) if len(starts) > 1 else 600


def _arrivals(window: Window, span: int, rng: np.random.Generator) -> np.ndarray:
    """Seconds from the start of the window, below `span`."""
    total, pieces = 0.0, []
    for gaps in _gaps(window, rng):
        times = total + np.cumsum(gaps)
        pieces.append(times)
        total = float(times[-1])
        if total >= span:
            break
    times = np.concatenate(pieces)
    return times[times < span]


def _gaps(window: Window, rng: np.random.Generator, piece: int = 1024) -> Iterator[np.ndarray]:
    while True:
        drawn = (rng.standard_gamma if window.family == "Gamma" else rng.weibull)(
            window.shape, piece
        )
        yield drawn * window.scale_s
