"""How sure a mean is: intervals over independent values, such as paired differences over seeds.

Values of one run follow one another and resemble one another, which makes them look more certain
than they are. So means of a few long stretches stand for them (batch means), after a warm-up.

References:
    Student's t at 95 % by the expansion of Abramowitz and Stegun, 26.7.5.
    T. Hesterberg (2015), What Teachers Should Know About the Bootstrap: the expanded percentile
    interval, which makes up for the bootstrap's being too narrow for few values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

# Stretches of a run, and the share of its arrivals that only fill the system.
STRETCHES = 10
WARM_UP = 0.2
# The range of five values holds the middle with a chance of 94 %: fewer cannot be resampled to 95.
FEWEST_TO_RESAMPLE = 6
RESAMPLES = 2000
CONFIDENCE = 0.95
# Student's t, 97.5 %, for few degrees of freedom, where its expansion is not good enough.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
BOOTSTRAP, STUDENT = "bootstrap", "Student's t"


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval, made from `count` values by the named `method`."""

    mean: float
    low: float
    high: float
    method: str
    count: int

    @property
    def differs_from_zero(self) -> bool:
        """Whether 0 lies outside."""
        return not self.low <= 0.0 <= self.high


def student_t(freedom: int) -> float:
    """The 97.5 % point of Student's t; `freedom` at least 1."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval | None:
    """Student's interval of a mean; None for fewer than two values.

    Args:
        values: independent, e.g. of different seeds.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return None
    mean = float(values.mean())
    margin = student_t(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - margin, mean + margin, STUDENT, len(values))


def bootstrap_interval(values: Sequence[float] | np.ndarray, seed: int = 0) -> Interval | None:
    """The bootstrap's interval of a mean; Student's for fewer than six values, None for one.

    Args:
        values: independent.
        seed: of the resampling; the same values and seed give the same interval.
    """
    values = np.asarray(values, float)
    count = len(values)
    if count < FEWEST_TO_RESAMPLE:
        return mean_interval(values)
    chosen = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * student_t(count - 1))
    low, high = np.quantile(values[chosen].mean(axis=1), (tail, 1 - tail))
    return Interval(float(values.mean()), float(low), float(high), BOOTSTRAP, count)


def warmed_up(arrived_s: np.ndarray) -> np.ndarray:
    """Which requests arrived after the warm-up; all, where all arrive at one moment.

    Args:
        arrived_s: moments of arrival, seconds, in any order.
    """
    if not len(arrived_s) or arrived_s.max() <= arrived_s.min():
        return np.ones(len(arrived_s), bool)
    start = np.sort(arrived_s)[int(WARM_UP * len(arrived_s))]
    return arrived_s >= start


def batch_means(values: np.ndarray) -> np.ndarray | None:
    """Means of ten stretches of a series, as equal in length as can be; None for fewer than 20.

    Args:
        values: in the order in which they came to be.
    """
    if len(values) < 2 * STRETCHES:
        return None
    return np.array([part.mean() for part in np.array_split(values, STRETCHES)])
