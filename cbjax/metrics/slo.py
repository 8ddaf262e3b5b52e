"""Service-level objectives: which answers were good, and how many of all.

Goodput is a rate in vLLM and AIPerf, a share in SGLang (attainment), and a greatest load in
DistServe. Here `goodput` is the rate and `attainment` the share; the greatest load is called
capacity.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import polars as pl


@dataclass(frozen=True)
class Slo:
    """Bounds in seconds that an answer must meet, all of them (joint attainment); None: no bound.

    A bound met exactly is met. `max_itl_s` bounds an answer's longest gap.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    max_itl_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, bound in self.bounds().items():
            if not bound > 0:
                raise ValueError(f"slo.{name}={bound} must be more than 0 seconds")

    def bounds(self) -> Mapping[str, float]:
        """The bounds that are set, by the name of the latency they bound."""
        return {name: bound for name, bound in asdict(self).items() if bound is not None}

    def __str__(self) -> str:
        """For captions, e.g. "ttft <= 1 s, tpot <= 0.1 s"."""
        parts = [f"{name.removesuffix('_s')} <= {b:g} s" for name, b in self.bounds().items()]
        return ", ".join(parts) or "none"


def as_slo(slo: Slo | Mapping[str, float | None] | None) -> Slo:
    """Accept an `Slo`, a mapping of its fields (as a config gives it), or None for no bounds.

    Raises:
        ValueError: a key is not a field of `Slo`.
    """
    if isinstance(slo, Slo):
        return slo
    known = [field.name for field in fields(Slo)]
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
