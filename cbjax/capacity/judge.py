"""Whether a run carried its load, and which limit gave way if it did not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cbjax.metrics import Slo


@dataclass(frozen=True)
class Tolerances:
    """What a load may do beside its latencies.

    Attributes:
        growth: most of the arrivals that may only lengthen the queue, as a share; beyond it the
            queue grows without bound, whatever the latencies of a short run say.
        thrash: most of the computed tokens that may be recomputations after preemptions.
        lost: most of the requests that may end without a complete answer, refused ones included.
    """

    growth: float = 0.01
    thrash: float = 0.1
    lost: float = 0.01

    def __post_init__(self) -> None:
        for name in ("growth", "thrash", "lost"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"search.{name} = {value}: give a share, 0 <= x < 1")


@dataclass(frozen=True)
class Limit:
    """One limit and where the run stood; `value` None: not measured, so it cannot be held."""

    name: str
    value: float | None
    bound: float

    @property
    def held(self) -> bool:
        """Whether the value is known and does not exceed the bound."""
        return self.value is not None and self.value <= self.bound


@dataclass(frozen=True)
class Verdict:
    """All limits of one run."""

    limits: tuple[Limit, ...]

    @property
    def passes(self) -> bool:
        """Whether every limit held."""
        return all(limit.held for limit in self.limits)

    @property
    def gave_way(self) -> tuple[str, ...]:
        """Names of the limits that did not hold."""
        return tuple(limit.name for limit in self.limits if not limit.held)


def judge(summary: Mapping[str, Any], slo: Slo, tolerances: Tolerances) -> Verdict:
    """Hold a run against its SLO, the stability test and the thrash limit.

    Args:
        summary: of the run, from `cbjax.metrics.summarise`.
        slo: percentiles of latencies with their bounds.
        tolerances: the other limits.

    Returns:
        Limits in the order: latencies, requests lost, growth of the queue (left out for runs too
        short to tell), tokens recomputed.
    """
    return Verdict(tuple(_limits(summary["metrics"], slo, tolerances)))


def _limits(metrics: Mapping[str, Any], slo: Slo, tolerances: Tolerances) -> Iterator[Limit]:
    for target in slo.targets():
        value = metrics[target.latency][f"p{target.percentile}"]
        yield Limit(target.name, value, target.bound_s)
    yield Limit("requests lost", metrics["lost_fraction"], tolerances.lost)
    if metrics["queue_growth"] is not None:
        yield Limit("queue growth", metrics["queue_growth"], tolerances.growth)
    yield Limit("tokens recomputed", metrics["recomputed_fraction"], tolerances.thrash)
