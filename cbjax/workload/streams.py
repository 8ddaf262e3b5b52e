"""Random streams: one seed for a workload, one independent stream for each use.

Every stream is the seed's child under a fixed key (`numpy.random.SeedSequence` spawn keys), so a
change in one, such as another length distribution, leaves all others as they were. That is what
lets two runs differ in one thing only (common random numbers).
"""

from enum import IntEnum

import numpy as np

from cbjax.workload.checks import require


class Stream(IntEnum):
    """What a stream is used for; the numbers are part of what a seed means and never change."""

    ARRIVALS = 0
    CLASSES = 1
    PROMPT_CHOICE = 2
    PROMPT_LENGTHS = 3
    OUTPUT_LENGTHS = 4
    TOKENS = 5
    SAMPLING = 6
    CLIENTS = 7
    TICKS = 8
    SESSIONS = 9
    PREDICTIONS = 10


def generator(seed: int, stream: Stream, *indices: int) -> np.random.Generator:
    """A fresh generator at the start of one stream.

    Args:
        seed: the seed of the workload, from 0.
        stream: what the numbers are for.
        indices: tells apart streams of one use, such as the class or the request.
    """
    require(seed >= 0, "seed", seed, "use a whole number from 0")
    key = (int(stream), *(int(index) for index in indices))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
