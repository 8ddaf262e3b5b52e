"""When requests arrive: absolute schedules fixed before the run, or a closed loop.

An open schedule is drawn once at rate 1 and divided by the rate, so one seed gives the same pattern
at every rate, only stretched, and a longer workload begins with the shorter one. Sending towards
absolute times keeps a late client from lowering the offered rate.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cbjax.workload.checks import require
from cbjax.workload.streams import Stream, generator

ArrivalKind = Literal["all_at_once", "poisson", "gamma", "constant", "closed_loop", "recorded"]

_NEEDS: dict[str, tuple[str, ...]] = {
    "all_at_once": (),
    "poisson": ("rate",),
    "gamma": ("rate", "burstiness"),
    "constant": ("rate",),
    "closed_loop": ("concurrency",),
    "recorded": (),
}


@dataclass(frozen=True)
class Arrivals:
    """How requests arrive.

    Args:
        kind: `all_at_once` (everything at time 0), `poisson`, `gamma`, `constant`, `closed_loop`
            (a new request becomes due when one ends), or `recorded` (the times of a trace).
        rate: mean arrivals per second, of the three kinds with a rate; with `recorded` those times
            are stretched to it, or kept if it is None.
        burstiness: shape of the gamma-distributed gaps, whose scale is 1 / (rate x burstiness):
            1 is Poisson, below 1 burstier, above 1 smoother. The convention of vLLM's benchmark.
        concurrency: requests in the system at a time, of `closed_loop`.

    Raises:
        ValueError: a value is impossible, missing, or without meaning for the kind.
    """

    kind: ArrivalKind = "all_at_once"
    rate: float | None = None
    burstiness: float | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        require(self.kind in _NEEDS, "arrivals.kind", self.kind,
                f"use one of {get_args(ArrivalKind)}")
        needed = _NEEDS[self.kind]
        for field in ("rate", "burstiness", "concurrency"):
            value = getattr(self, field)
            if value is not None and (self.kind, field) == ("recorded", "rate"):
                require(0 < value < np.inf, "arrivals.rate", value, "use a finite number above 0")
            elif field not in needed:
                kinds = [kind for kind, fields in _NEEDS.items() if field in fields]
                require(value is None, f"arrivals.{field}", value,
                        f"kind={self.kind!r} has none; leave it out or use kind {kinds}")
            else:
                require(value is not None and 0 < value < np.inf, f"arrivals.{field}", value,
                        f"kind={self.kind!r} needs a finite number above 0")
        require(self.concurrency is None or self.concurrency == int(self.concurrency),
                "arrivals.concurrency", self.concurrency, "use a whole number from 1")


def arrival_times(arrivals: Arrivals, count: int, seed: int) -> tuple[float | None, ...]:
    """Absolute arrival times of `count` requests, in seconds from the start of the clock.

    The first request of an open schedule waits its gap like every other. In a closed loop the
    first `concurrency` requests are due at 0; each of the others is None: it becomes due the
    moment an earlier one ends, in order.

    Raises:
        ValueError: `recorded` arrivals, which only a trace has.
    """
    require(arrivals.kind != "recorded", "arrivals.kind", arrivals.kind,
            "only a trace has recorded times; use another kind here")
    if arrivals.kind == "all_at_once":
        return (0.0,) * count
    if arrivals.concurrency is not None:
        due = min(count, int(arrivals.concurrency))
        return (0.0,) * due + (None,) * (count - due)
    assert arrivals.rate is not None
    if arrivals.kind == "constant":
        gaps = np.ones(count)
    else:
        shape = 1.0 if arrivals.burstiness is None else arrivals.burstiness
        gaps = generator(seed, Stream.ARRIVALS).standard_gamma(shape, count) / shape
    return tuple((np.cumsum(gaps) / arrivals.rate).tolist())
