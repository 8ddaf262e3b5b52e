"""Whether a load can be carried for long: does the queue grow as long as requests arrive?"""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from cbjax.metrics.statistics import STRETCHES, WARM_UP, student_t


@dataclass(frozen=True)
class Stability:
    """How a queue went over the time in which requests arrived.

    Attributes:
        growth_per_s: slope of the number of waiting requests, requests per second.
        error_per_s: standard error of the slope.
        offered_per_s: arrivals per second.
    """

    growth_per_s: float
    error_per_s: float
    offered_per_s: float

    @property
    def growth(self) -> float:
        """The share of arrivals that only lengthens the queue, as far as it is certain; >= 0."""
        if not self.offered_per_s > 0:
            return 0.0
        sure = self.growth_per_s - student_t(STRETCHES - 2) * self.error_per_s
        return max(sure, 0.0) / self.offered_per_s


def queue_stability(requests: pl.DataFrame) -> Stability | None:
    """Fit a line to the queue's length, by batch means.

    The time from 20 % of the arrivals to the last one is cut into ten parts of equal length; the
    mean queue of each is one observation, so that the wobble within a part, which is correlated,
    does not pass for certainty. What happens after the last arrival says nothing about the load.

    Args:
        requests: the requests table, R rows. A request waits from its scheduled arrival until it is
            first admitted (or ends).

    Returns:
        None for fewer than 20 requests, or where all arrive at one moment.
    """
    arrived = np.sort(requests["scheduled_arrival_s"].to_numpy())
    if len(arrived) < 2 * STRETCHES:
        return None
    start, end = arrived[int(WARM_UP * len(arrived))], arrived[-1]
    if not end > start:
        return None
    left = requests.select(pl.min_horizontal("admitted_s", "finished_s").fill_null(math.inf))
    edges = np.linspace(start, end, STRETCHES + 1)
    # The integral of the queue over time, from 0 to every edge: arrivals add, departures take away.
    area = _area(arrived, edges) - _area(np.sort(left.to_series().to_numpy()), edges)
    means, middles = np.diff(area) / np.diff(edges), (edges[1:] + edges[:-1]) / 2
    slope, level = np.polyfit(middles - middles.mean(), means, 1)
    spread = means - level - slope * (middles - middles.mean())
    error = math.sqrt(np.sum(spread**2) / (STRETCHES - 2) / np.sum((middles - middles.mean()) ** 2))
    offered = float(np.sum(arrived > start)) / (end - start)
    return Stability(float(slope), error, offered)


def _area(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Integral up to every edge of how many of the sorted `times` have passed."""
    sums = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(times), times, 0.0))])
    passed = np.searchsorted(times, edges, side="right")
    return passed * edges - sums[passed]
