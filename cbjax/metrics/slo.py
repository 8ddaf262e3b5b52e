"""Service-level objectives: which answers were good, and how many of all.

Goodput is a rate in vLLM and AIPerf, a share in SGLang (attainment), and a greatest load in
DistServe. Here `goodput` is the rate and `attainment` the share; the greatest load is called
capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import polars as pl

PERCENTILES = (50, 90, 95, 99)
USUAL_PERCENTILE = 95


@dataclass(frozen=True)
class Target:
    """A percentile of a latency that must not exceed a bound in seconds."""

    latency: str
    percentile: int
    bound_s: float

    @property
    def name(self) -> str:
        """What is bounded, e.g. "ttft p95"."""
        return f"{self.latency.removesuffix('_s')} p{self.percentile}"

    def __str__(self) -> str:
        return f"{self.name} <= {self.bound_s:g} s"


@dataclass(frozen=True)
class Slo:
    """Bounds in seconds, read in two ways; None: no bound. A bound met exactly is met.

    A single *answer* is good if it meets all bounds (joint attainment); `max_itl_s` bounds its
    longest gap, and `itl_s`, a bound on the gaps of all answers together, judges none. A *load* is
    carried if of every bounded latency the percentile in `percentiles` (50, 90, 95 or 99; 95 where
    none is given) meets the bound, see `targets`.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    tpot_s: float | None = None
    max_itl_s: float | None = None
    e2e_s: float | None = None
    percentiles: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = self._set()
        for name, bound in bounds.items():
            if not bound > 0:
                raise ValueError(f"slo.{name}={bound} must be more than 0 seconds")
        for name, percentile in self.percentiles.items():
            if name not in bounds:
                raise ValueError(
                    f"slo.percentiles.{name}={percentile}: nothing bounds {name}; set slo.{name} "
                    "too, or leave the percentile out"
                )
            if percentile not in PERCENTILES:
                raise ValueError(
                    f"slo.percentiles.{name}={percentile}: give one of "
                    f"{', '.join(map(str, PERCENTILES))}"
                )

    def _set(self) -> Mapping[str, float]:
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        del named["percentiles"]
        return {name: bound for name, bound in named.items() if bound is not None}

    def bounds(self) -> Mapping[str, float]:
        """The bounds on a single answer that are set, by the name of the latency they bound."""
        return {name: bound for name, bound in self._set().items() if name != "itl_s"}

    def stated(self) -> Mapping[str, Any]:
        """What is set, as plain values that `as_slo` takes back."""
        percentiles = {"percentiles": dict(self.percentiles)} if self.percentiles else {}
        return {**self._set(), **percentiles}

    def targets(self) -> tuple[Target, ...]:
        """What a load must meet: a percentile per bound."""
        return tuple(
            Target(name, self.percentiles.get(name, USUAL_PERCENTILE), bound)
            for name, bound in self._set().items()
        )

    def __str__(self) -> str:
        """For captions, e.g. "ttft <= 1 s, tpot <= 0.1 s"."""
        parts = [f"{name.removesuffix('_s')} <= {b:g} s" for name, b in self._set().items()]
        return ", ".join(parts) or "none"


def as_slo(slo: Slo | Mapping[str, Any] | None) -> Slo:
    """Accept an `Slo`, a mapping of its fields (as a config gives it), or None for no bounds.

    Raises:
        ValueError: a key is not a field of `Slo`.
    """
    if isinstance(slo, Slo):
        return slo
    known = [one.name for one in fields(Slo)]
    unknown = sorted(set(slo or {}) - set(known))
    if unknown:
        raise ValueError(f"slo has no field {unknown[0]!r}; the fields are {', '.join(known)}")
    return Slo(**(slo or {}))


def meets(slo: Slo, latencies: pl.DataFrame) -> pl.DataFrame:
    """Judge every request against every bound.

    Args:
        slo: the bounds.
        latencies: from `request_latencies`, R rows.

    Returns:
        R rows of booleans, one column per bound and `good` for all of them. Only a completed
        request can be good: refused, failed, aborted and unfinished ones count as not good, as
        SGLang and AIPerf count them. An answer of one token meets any bound on gaps, as in vLLM,
        SGLang and DistServe (AIPerf says the opposite).
    """
    completed = pl.col("outcome") == "completed"
    of_gaps = {"tpot_s", "max_itl_s"}
    judged = {
        name: completed & (pl.col(name) <= bound).fill_null(name in of_gaps)
        for name, bound in slo.bounds().items()
    }
    return latencies.select(
        good=pl.all_horizontal(completed, *judged.values()),
        **judged,
    )
