"""How much prompts share: content keys of whole KV blocks, and what an endless cache would find."""

import numpy as np

from cbjax.workload.checks import require
from cbjax.workload.segments import Segments, mixed
from cbjax.workload.trace import Trace

_PLACE, _END = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA5A3564E27F88691)


def block_keys(segments: Segments, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """A 64-bit key for every whole KV block of every prompt, equal for equal prefixes.

    No token is made for it. A block at the end that a prompt fills in part has no key, as it can
    not be found by others.

    Args:
        segments: of R prompts.
        block_size: B, tokens of a KV block.

    Returns:
        `offsets [R+1]`, where each prompt's blocks begin, and `keys [...]` uint64.
    """
    require(block_size >= 1, "block_size", block_size, "use at least 1")
    ends, counts = segments.ends(), segments.counts
    total = np.cumsum(segments.lengths, dtype=np.int64)  # over all prompts
    bases = np.concatenate([[0], total])[segments.offsets]
    blocks = np.diff(bases) // block_size
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    until = block_size * (np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks) + 1)
    last = np.searchsorted(total, until + np.repeat(bases[:-1], blocks))  # segment of the last one
    with np.errstate(over="ignore"):
        place = np.arange(len(ends)) - np.repeat(segments.offsets[:-1], counts)
        ids = mixed(segments.ids.astype(np.uint64))
        links = mixed(ids + mixed(place.astype(np.uint64) * _PLACE + ends.astype(np.uint64) * _END))
        summed = np.cumsum(links) - links
        before = summed - np.repeat(summed[segments.offsets[:-1][counts > 0]], counts[counts > 0])
        keys = mixed(before[last] + mixed(ids[last] + until.astype(np.uint64) * _END))
    return offsets, keys


def reused_tokens(trace: Trace, block_size: int) -> np.ndarray:
    """Prompt tokens of each request that an endless prefix cache would hold on its arrival, `[R]`.

    Whole blocks from the start of the prompt, seen in an earlier prompt; requests are taken one
    after another. What a real cache finds is at most that.
    """
    if trace.segments is None:
        return np.zeros(len(trace), np.int64)
    offsets, keys = block_keys(trace.segments, block_size)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    request = np.repeat(np.arange(len(trace)), np.diff(offsets))
    # Keys are chained, so a block that was seen follows blocks that were.
    seen = request[first][inverse] < request
    return block_size * np.bincount(request[seen], minlength=len(trace))
