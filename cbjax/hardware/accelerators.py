"""Accelerators as records: memory, bandwidth and peak rates, with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cbjax.hardware.tables import entry, require, table


@dataclass(frozen=True)
class Accelerator:
    """One device, by what its vendor says of it.

    Attributes:
        name: short name, as in the table.
        memory: bytes.
        bandwidth: bytes per second between memory and chip.
        rates: dense operations per second by type of the operands; a multiply and add are two.
        title: the name for people.
        source: where the figures come from.
        note: where sources differ.
    """

    name: str
    memory: float
    bandwidth: float
    rates: Mapping[str, float]
    title: str = ""
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for field in ("memory", "bandwidth"):
            require(getattr(self, field) > 0, f"hardware.{field}", getattr(self, field),
                    "give a number above 0")

    def rate(self, dtype: str) -> float:
        """Operations per second on operands of `dtype`.

        Raises:
            ValueError: the table has no rate for it.
        """
        require(dtype in self.rates, "dtype", dtype,
                f"no peak rate is known for {self.name}; it has {', '.join(self.rates)}")
        return self.rates[dtype]

    def derated(self, *, bandwidth: float = 1.0, rates: float = 1.0) -> "Accelerator":
        """The same device reaching only a share of its peaks, `0 < share <= 1`.

        For estimates, not for floors: steps of Llama 3.1 8B, composed from measured kernels, take
        1.1 to 2.0 times their floor on the five NVIDIA devices here.
        """
        for field, share in (("bandwidth", bandwidth), ("rates", rates)):
            require(0 < share <= 1, f"derated.{field}", share, "give a share, 0 < x <= 1")
        slower = {dtype: rates * peak for dtype, peak in self.rates.items()}
        return replace(self, bandwidth=bandwidth * self.bandwidth, rates=slower)


def names() -> list[str]:
    """Accelerators of the table."""
    return list(table("accelerators"))


def load(name: str) -> Accelerator:
    """The accelerator `name`, e.g. "h100".

    Raises:
        ValueError: it is not in the table; an `Accelerator` of your own is as good.
    """
    return Accelerator(name=name, **entry("accelerators", "hardware", name))
