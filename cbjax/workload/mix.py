"""Several kinds of requests in one workload, each with its share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cbjax.workload.checks import require
from cbjax.workload.lengths import Lengths
from cbjax.workload.records import Prompt
from cbjax.workload.streams import Stream, generator


@dataclass(frozen=True)
class RequestClass:
    """One kind of request.

    Args:
        name: shown in the results.
        share: weight among the classes; only ratios matter.
        prompts: real prompts, or
        prompt_lengths: lengths of synthetic ones; exactly one of the two.
        output_lengths: drawn as `max_tokens`; None takes the bound each prompt brings along.
        priority: lower is served earlier by policies that know priorities.
        ignore_eos: produce `max_tokens` whatever the model says; None: only after synthetic
            prompts, whose answers have no natural end.

    Raises:
        ValueError: a value is impossible; the text names field, value and remedy.
    """

    name: str
    share: float = 1.0
    prompts: tuple[Prompt, ...] | None = None
    prompt_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    priority: int = 0
    ignore_eos: bool | None = None

    def __post_init__(self) -> None:
        require(self.name, "class.name", self.name, "give the class a name")
        require(0 <= self.share < np.inf, "class.share", self.share, "use a finite number from 0")
        require((self.prompts is None) != (self.prompt_lengths is None), "class.prompts",
                self.prompts, f"class {self.name!r} needs either prompts or prompt_lengths")
        require(self.prompts != (), "class.prompts", self.prompts,
                f"class {self.name!r} needs at least one prompt")
        require(self.prompts is not None or self.output_lengths is not None, "class.output_lengths",
                None, f"class {self.name!r} has synthetic prompts; say how long its outputs are")


def assign_classes(shares: Sequence[float], count: int, seed: int) -> list[int]:
    """The class of each of `count` requests, as an index into `shares`.

    Counts follow the shares exactly up to rounding (largest remainder, ties to the earlier class),
    as a small workload with drawn classes could miss one; their order is a seeded shuffle.
    """
    weights = np.asarray(shares, np.float64)
    require(weights.size and weights.min() >= 0 and weights.sum() > 0, "class.share", list(shares),
            "give at least one class a share above 0")
    exact = count * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: count - counts.sum()]] += 1
    classes = np.repeat(np.arange(weights.size), counts)
    return generator(seed, Stream.CLASSES).permutation(classes).tolist()
