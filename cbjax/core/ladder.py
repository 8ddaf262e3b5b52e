"""The ladder: the finite list of padded shapes that may be compiled.

Its programs are a *sum* over axes: decode rungs (as many tokens as sequences) plus mixed rungs
(every seat, a growing number of tokens). The greatest schedulable batch is the last rung, never
the next power of two.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Rung:
    """One compiled shape: T tokens of S sequences at most."""

    tokens: int
    sequences: int

    def __str__(self) -> str:
        return f"{self.tokens}x{self.sequences}"

    def holds(self, tokens: int, sequences: int) -> bool:
        """Whether a batch of `tokens` tokens of `sequences` sequences fits."""
        return self.tokens >= tokens and self.sequences >= sequences


@dataclass(frozen=True)
class Ladder:
    """Rungs in ascending order of cost; a batch takes the first that holds it.

    The size stands for the cost where nothing was measured; `by_cost` orders by measured costs.
    """

    rungs: tuple[Rung, ...]

    def choose(self, tokens: int, sequences: int) -> int:
        """Index of the first rung that holds `tokens` tokens of `sequences` sequences.

        Raises:
            ValueError: none does; the last rung must hold the greatest schedulable batch.
        """
        for index, rung in enumerate(self.rungs):
            if rung.holds(tokens, sequences):
                return index
        raise ValueError(
            f"no rung of {[str(rung) for rung in self.rungs]} holds {tokens} tokens of "
            f"{sequences} sequences: end the ladder with the greatest schedulable batch"
        )


def ladder(
    tokens: int, seats: int, *, decode: Iterable[int] | None = None,
    mixed: Iterable[int] | None = None,
) -> Ladder:
    """A ladder of decode rungs and mixed rungs ending in the greatest schedulable batch.

    Args:
        tokens: most tokens of one iteration, padding that a policy asks for included.
        seats: most sequences of one iteration.
        decode: sequences of the decode rungs; by default the powers of two up to the seats.
        mixed: tokens of the mixed rungs; by default the seats doubled up to `tokens`.

    Raises:
        ValueError: a size is not positive or exceeds what can be scheduled.
    """
    if tokens < 1 or seats < 1:
        raise ValueError(f"ladder for {tokens} tokens of {seats} seats: both must be at least 1")
    sequences = min(seats, tokens)
    decode_sizes = set(_doubling(1, sequences) if decode is None else decode)
    mixed_sizes = set(_doubling(sequences, tokens) if mixed is None else mixed)
    for name, sizes, most in (("decode", decode_sizes, sequences), ("mixed", mixed_sizes, tokens)):
        wrong = [size for size in sizes if not 1 <= size <= most]
        if wrong:
            raise ValueError(
                f"ladder.{name} = {sorted(sizes)}: {wrong[0]} is not within 1..{most}; "
                "the last rung is the greatest batch that can be scheduled"
            )
    rungs = {Rung(size, size) for size in decode_sizes}
    rungs |= {Rung(size, sequences) for size in mixed_sizes | {tokens}}
    return Ladder(tuple(sorted(rungs)))


def by_cost(costs: Mapping[Rung, float]) -> Ladder:
    """A ladder whose batches take the cheapest rung that holds them.

    A rung is left out where another holds as much and costs no more: it would only be compiled.

    Args:
        costs: of an iteration on each rung, in any unit; of equal ones the smaller rung is taken.
    """
    useful: list[Rung] = []
    for rung in sorted(costs, key=lambda rung: (costs[rung], rung)):
        if not any(cheaper.holds(rung.tokens, rung.sequences) for cheaper in useful):
            useful.append(rung)
    return Ladder(tuple(useful))


def _doubling(start: int, stop: int) -> list[int]:
    sizes = []
    while start < stop:
        sizes.append(start)
        start *= 2
    return sizes + [stop]
