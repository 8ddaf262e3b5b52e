"""The greatest load that passes: doubling until one fails, then bisection of the bracket."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cbjax.capacity.judge import Verdict

Probe = Callable[[float], Verdict]


@dataclass(frozen=True)
class Search:
    """How to look for a capacity.

    Attributes:
        start: load that is tried first.
        least: a load below it is not worth having; where even that fails, there is no capacity.
        most: a load above it is not tried.
        precision: the bracket's ends differ by at most this share of the lower one.
    """

    start: float
    least: float
    most: float
    precision: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.start <= self.most < math.inf:
            raise ValueError(
                f"search: least = {self.least}, start = {self.start}, most = {self.most}: give "
                "loads above 0 in this order"
            )
        if not 0 < self.precision <= 1:
            raise ValueError(f"search.precision = {self.precision}: give a share, 0 < x <= 1")


@dataclass(frozen=True)
class Bracket:
    """Where the capacity lies.

    Attributes:
        low: greatest load that passed; 0 if none did.
        high: least load above it that failed; infinite if none did up to the most.
        verdicts: of every load that was tried, in the order of trying.
    """

    low: float
    high: float
    verdicts: dict[float, Verdict]

    @property
    def gave_way(self) -> tuple[str, ...]:
        """The limits that did not hold at `high`."""
        return self.verdicts[self.high].gave_way if self.high in self.verdicts else ()


def greatest_load(probe: Probe, search: Search) -> Bracket:
    """Find the greatest load that passes.

    Loads are `start` times a power of two until one passes and its double fails, then the
    geometric middle of the bracket until it is narrow enough. The lower end has always passed and
    the upper end failed, and nothing outside the bracket is tried again, so that a verdict that
    wobbles near the capacity cannot turn the search round. Equal starts give equal loads for every
    setting and seed as long as their verdicts agree: they are then compared on the same requests.

    Args:
        probe: runs one load, e.g. requests per second, and judges it.
        search: where to begin and how closely to look.

    Returns:
        The bracket.
    """
    verdicts: dict[float, Verdict] = {}

    def passes(load: float) -> bool:
        verdicts[load] = probe(load)
        return verdicts[load].passes

    low, high = 0.0, math.inf
    if passes(search.start):
        low = search.start
        while low < search.most:
            load = min(2 * low, search.most)
            if not passes(load):
                high = load
                break
            low = load
    else:
        high = search.start
        while high > search.least:
            load = max(high / 2, search.least)
            if passes(load):
                low = load
                break
            high = load
    while 0 < low and high < math.inf and high > low * (1 + search.precision):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if passes(middle) else (low, middle)
    return Bracket(low, high, verdicts)
