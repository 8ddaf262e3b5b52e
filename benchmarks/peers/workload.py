"""The requests that every peer serves: drawn once from a seed, as token ids, all due at time 0.

Prompts and outputs have log-normal lengths (medians 96 and 64), clipped to 8..512 and 4..256. The
end of sequence is ignored and decoding is greedy, so that every peer computes as many tokens. A
prompt is random ids: no peer can share a prefix, and no tokenizer is asked.
"""

from dataclasses import dataclass

import numpy as np

PROMPTS = (96, 0.8, 8, 512)  # median, sigma of the logarithm, least, most
OUTPUTS = (64, 0.7, 4, 256)
LONGEST = PROMPTS[3] + OUTPUTS[3]
WARM_UP_TOKENS = 24  # outputs of a warm-up request at most


@dataclass(frozen=True)
class Asked:
    """One request: token ids in, this many token ids out."""

    prompt: list[int]
    outputs: int


def draw(count: int, vocab_size: int, seed: int = 0) -> list[Asked]:
    """The first `count` requests of a seed.

    Args:
        count: of requests.
        vocab_size: ids are drawn below it, above the special tokens of the first 100 ids.
        seed: of lengths and ids.
    """
    random = np.random.default_rng(seed)
    asked = []
    for _ in range(count):
        prompt, outputs = (_length(random, *shape) for shape in (PROMPTS, OUTPUTS))
        ids = random.integers(min(100, vocab_size // 2), vocab_size, prompt)
        asked.append(Asked([int(token) for token in ids], outputs))
    return asked


def warm_up(asked: list[Asked], sequences: int) -> list[Asked]:
    """Requests that bring a peer through its shapes: as many as run at once, with short outputs."""
    return [Asked(one.prompt, min(one.outputs, WARM_UP_TOKENS)) for one in asked[:sequences]]


def _length(random: np.random.Generator, median: float, sigma: float, low: int, high: int) -> int:
    return int(np.clip(np.round(random.lognormal(np.log(median), sigma)), low, high))
