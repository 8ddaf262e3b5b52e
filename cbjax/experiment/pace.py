"""How far a study is, and for how long it will go on."""

import time

from cbjax.experiment.backends import Progress

CELLS = "cells"


class Pace:
    """Counts cells and tells the time left, as long as those so far took on average."""

    def __init__(self, total: int, left: int, progress: Progress | None) -> None:
        self._total, self._left, self._progress = total, left, progress
        self._began, self._done = time.monotonic(), 0

    def place(self) -> str:
        """Which cell of how many is meant, e.g. "[3/27] "."""
        return f"[{self._total - self._left + 1}/{self._total}] "

    def told(self) -> str:
        """The time left, e.g. " (about 4 min left)"; nothing while it cannot be known."""
        if not self._done or not self._left:
            return ""
        taken = time.monotonic() - self._began
        return f" (about {in_words(taken / self._done * self._left)} left)"

    def step(self) -> None:
        """One more cell has ended."""
        self._done, self._left = self._done + 1, self._left - 1
        if self._progress:
            self._progress(f"{CELLS}{self.told()}", self._total - self._left, self._total)


def in_words(seconds: float) -> str:
    """A duration for people, e.g. "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
