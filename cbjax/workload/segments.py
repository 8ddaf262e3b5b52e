"""Prompts known by what they share: each a row of segments, equal segments being equal text.

Public traces hide the words and keep the sharing: a prompt is a list of ids, one per block, and two
prompts that begin with the same ids begin with the same text. Every token follows from the seed,
its segment's id and its place in the segment, so any part of any prompt can be made when needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cbjax.workload.checks import require

_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class PromptSegments:
    """One prompt; `lengths[i]` tokens of the segment `ids[i]`, from its start."""

    ids: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Length of the prompt in tokens."""
        return sum(self.lengths)


@dataclass(frozen=True, eq=False)
class Segments:
    """The segments of R prompts as columns.

    Attributes:
        offsets: `[R+1]`, where each prompt's segments begin in the other two.
        ids: `[...]` int64, equal for equal text.
        lengths: `[...]` int32, tokens taken of each segment, from its start.
    """

    offsets: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Segments per prompt, `[R]`."""
        return np.diff(self.offsets)

    def prompt(self, row: int) -> PromptSegments:
        """The segments of one prompt."""
        here = slice(self.offsets[row], self.offsets[row + 1])
        return PromptSegments(tuple(self.ids[here].tolist()), tuple(self.lengths[here].tolist()))

    def take(self, rows: np.ndarray) -> "Segments":
        """The segments of some prompts, in the order given."""
        counts = self.counts[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        places = np.repeat(self.offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Segments(offsets, self.ids[places], self.lengths[places])

    def ends(self) -> np.ndarray:
        """Tokens of the prompt up to the end of each segment, `[...]`."""
        total = np.cumsum(self.lengths, dtype=np.int64)
        before = np.concatenate([[0], total])[self.offsets[:-1]]
        return total - np.repeat(before, self.counts)

    def with_ends(self, ends: np.ndarray) -> "Segments":
        """Other lengths, given by where segments end; what becomes empty is left out."""
        starts = np.concatenate([[0], ends[:-1]])
        starts[self.offsets[:-1][self.counts > 0]] = 0
        lengths = (ends - starts).astype(np.int32)
        kept = lengths > 0
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return Segments(offsets, self.ids[kept], lengths[kept])


def of_blocks(
    hash_ids: Sequence[Sequence[int] | np.ndarray], prompt_tokens: np.ndarray, block: int
) -> Segments:
    """Segments of prompts that are cut into blocks of equal length, the last one in part.

    Args:
        hash_ids: one id per block of each prompt.
        prompt_tokens: `[R]`; prompt i has `ceil(prompt_tokens[i] / block)` ids.
        block: tokens of a block.
    """
    counts = np.fromiter(map(len, hash_ids), np.int64, len(hash_ids))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = np.concatenate([np.zeros(0, np.int64), *hash_ids])
    lengths = np.full(ids.size, block, np.int32)
    lengths[offsets[1:] - 1] = prompt_tokens - (counts - 1) * block
    return Segments(offsets, ids, lengths)


def segment_token_ids(
    seed: int, prompt: PromptSegments, vocab_size: int, excluded_ids: Sequence[int] = ()
) -> tuple[int, ...]:
    """The token ids of a prompt: equal segments give equal tokens, in any prompt.

    Args:
        seed: of the workload.
        prompt: its segments.
        vocab_size: V; ids are below it.
        excluded_ids: never used, such as end-of-sequence ids.

    Raises:
        ValueError: `excluded_ids` leave nothing to draw from.
    """
    lengths = np.asarray(prompt.lengths, np.int64)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = (np.arange(lengths.sum()) - starts).astype(np.uint64)
    keys = mixed(np.asarray(prompt.ids, np.int64).astype(np.uint64) + mixed(np.uint64(seed)))
    drawn = mixed(np.repeat(keys, lengths) + places)
    usable = vocab_size - len(excluded_below(vocab_size, excluded_ids))
    return around(drawn % np.uint64(usable), vocab_size, excluded_ids)


def mixed(numbers: np.ndarray | np.uint64) -> np.ndarray:
    """64 well-mixed bits for each number (the finaliser of SplitMix64, Steele et al. 2014)."""
    bits = np.asarray(numbers, np.uint64)
    with np.errstate(over="ignore"):
        bits = bits + _STEP
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def excluded_below(vocab_size: int, excluded_ids: Sequence[int]) -> list[int]:
    """The excluded ids that exist, in order.

    Raises:
        ValueError: they leave nothing to draw from.
    """
    excluded = sorted({token for token in excluded_ids if 0 <= token < vocab_size})
    require(vocab_size > len(excluded), "vocab_size", vocab_size,
            f"must be greater than the number of excluded ids ({len(excluded)})")
    return excluded


def around(
    drawn: np.ndarray, vocab_size: int, excluded_ids: Sequence[int]
) -> tuple[int, ...]:
    """Numbers below V less the excluded, as ids that step over the excluded ones."""
    ids = np.asarray(drawn, np.int64)
    for token in excluded_below(vocab_size, excluded_ids):
        ids = ids + (ids >= token)
    return tuple(ids.tolist())
