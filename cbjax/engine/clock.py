"""Clocks: the loop asks the time and waits through one of these, so that it runs under either."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since a start."""

    def now(self) -> float:
        """Seconds since the start."""

    def wait_until(self, moment: float) -> None:
        """Return when the clock shows `moment` or later."""


class WallClock:
    """Real time, from the moment it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._start

    def wait_until(self, moment: float) -> None:
        """Sleep towards the absolute moment, so that delays do not add up."""
        time.sleep(max(0.0, moment - self.now()))


class ProcessClock:
    """The seconds of all cores that this process computes; waiting takes none and is skipped.

    For measurements on a machine that others use too: what they take does not count.
    """

    def __init__(self) -> None:
        self._start = time.process_time()

    def now(self) -> float:
        """Seconds computed since the clock was made, and those skipped."""
        return time.process_time() - self._start

    def wait_until(self, moment: float) -> None:
        """Jump to the moment."""
        self._start -= max(0.0, moment - self.now())


class UnitClock:
    """Virtual time that moves only when told; an iteration takes one second."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Seconds told so far."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Jump to the moment."""
        self._now = max(self._now, moment)

    def tick(self) -> None:
        """One iteration's worth of time."""
        self._now += 1.0
