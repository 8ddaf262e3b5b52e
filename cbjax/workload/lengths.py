"""How many tokens a prompt or an output has: three distributions over whole numbers."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from cbjax.workload.checks import require

LengthKind = Literal["fixed", "uniform", "log_normal"]

_NEEDS: dict[str, tuple[str, ...]] = {
    "fixed": ("value",),
    "uniform": ("low", "high"),
    "log_normal": ("median", "sigma", "low", "high"),
}


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths in tokens.

    Args:
        kind: `fixed` (always `value`), `uniform` (`low`..`high`, both included) or `log_normal`.
        value: the length, of `fixed`.
        low: least length.
        high: greatest length; log-normal lengths outside of `low`..`high` are set to the nearer
            bound, not drawn again.
        median: of the log-normal distribution before the bounds apply.
        sigma: standard deviation of the logarithm; 0 always gives the median.

    Raises:
        ValueError: a value is impossible, missing, or without meaning for the kind.
    """

    kind: LengthKind
    value: int | None = None
    low: int | None = None
    high: int | None = None
    median: float | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        require(self.kind in _NEEDS, "lengths.kind", self.kind,
                f"use one of {get_args(LengthKind)}")
        needed = _NEEDS[self.kind]
        for field in ("value", "low", "high", "median", "sigma"):
            value = getattr(self, field)
            if field not in needed:
                require(value is None, f"lengths.{field}", value,
                        f"kind={self.kind!r} has none; leave it out")
                continue
            least = 0 if field == "sigma" else 1
            require(value is not None and least <= value < np.inf, f"lengths.{field}", value,
                    f"kind={self.kind!r} needs a finite number from {least}")
            require(field in ("median", "sigma") or value == int(value), f"lengths.{field}", value,
                    "use a whole number of tokens")
        if self.low is not None and self.high is not None:
            require(self.low <= self.high, "lengths.low", self.low, f"use at most high={self.high}")


def draw_lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> list[int]:
    """Draw `count` lengths in tokens; more of them begin with the same ones."""
    if lengths.value is not None:
        return [int(lengths.value)] * count
    assert lengths.low is not None and lengths.high is not None
    if lengths.median is None or lengths.sigma is None:
        return rng.integers(lengths.low, lengths.high, count, endpoint=True).tolist()
    drawn = np.rint(lengths.median * np.exp(lengths.sigma * rng.standard_normal(count)))
    return np.clip(drawn, lengths.low, lengths.high).astype(np.int64).tolist()
