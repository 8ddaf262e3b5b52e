"""Prompts by what they share: tokens from ids, and how much a prefix cache could find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax.workload import PromptSegments, Segments, segment_token_ids, trace_of_columns
from cbjax.workload.reuse import block_keys, reused_tokens


def segments_of(prompts: list[list[tuple[int, int]]]) -> Segments:
    flat = [pair for prompt in prompts for pair in prompt]
    offsets = np.cumsum([0, *map(len, prompts)])
    ids, lengths = (np.array([pair[place] for pair in flat], np.int64) for place in (0, 1))
    return Segments(offsets, ids, lengths.astype(np.int32))


PROMPTS = st.lists(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 9)), min_size=1, max_size=4),
    min_size=1, max_size=6,
)


def test_tokens_follow_seed_segment_and_place():
    prompt = PromptSegments((5, 6), (40, 40))
    ids = segment_token_ids(1, prompt, 1000)
    assert len(ids) == prompt.tokens == 80 and 0 <= min(ids) and max(ids) < 1000
    assert ids == segment_token_ids(1, prompt, 1000)
    assert ids != segment_token_ids(2, prompt, 1000)
    assert ids[:40] != ids[40:]
    assert segment_token_ids(1, PromptSegments((6, 5), (40, 7)), 1000) == ids[40:] + ids[:7]
    assert segment_token_ids(1, PromptSegments((-3,), (9,)), 1000)


def test_tokens_miss_only_the_excluded_and_are_even():
    ids = segment_token_ids(1, PromptSegments((3,), (12_000,)), 12, excluded_ids=(0, 5, 11, 99))
    counts = np.bincount(ids, minlength=12)
    assert np.flatnonzero(counts).tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert counts[counts > 0].min() > 1200
    with pytest.raises(ValueError, match="^vocab_size = 2: "):
        segment_token_ids(1, PromptSegments((3,), (1,)), 2, excluded_ids=(0, 1))


@given(PROMPTS, st.integers(1, 7), st.data())
def test_taking_and_ends_agree_with_lists(prompts, most, data):
    segments = segments_of(prompts)
    rows = data.draw(st.lists(st.integers(0, len(prompts) - 1), max_size=5))
    taken = segments.take(np.array(rows, np.int64))
    for place, row in enumerate(rows):
        assert list(zip(taken.prompt(place).ids, taken.prompt(place).lengths, strict=True)) == (
            prompts[row]
        )
    cut = segments.with_ends(np.minimum(segments.ends(), most))
    for row, prompt in enumerate(prompts):
        expanded = [one for one, length in prompt for _ in range(length)][:most]
        kept = cut.prompt(row)
        assert [i for i, n in zip(kept.ids, kept.lengths, strict=True) for _ in range(n)] == (
            expanded
        )


@given(PROMPTS, st.integers(1, 5))
def test_keys_are_equal_exactly_where_prefixes_are(prompts, block_size):
    """The whole text up to a block's end decides, as written out token by token."""
    segments = segments_of(prompts)
    offsets, keys = block_keys(segments, block_size)
    texts = {}
    for row, prompt in enumerate(prompts):
        # A token is known by its segment and place; the same segment again begins anew.
        tokens = [(one, place) for one, length in prompt for place in range(length)]
        blocks = len(tokens) // block_size
        assert offsets[row + 1] - offsets[row] == blocks
        for block in range(blocks):
            text = tuple(tokens[: (block + 1) * block_size])
            texts.setdefault(text, set()).add(int(keys[offsets[row] + block]))
    assert all(len(found) == 1 for found in texts.values())
    assert len(set(keys.tolist())) == len(texts)


def test_an_endless_cache_finds_whole_blocks_of_earlier_prompts():
    segments = segments_of([[(1, 10), (2, 4)], [(1, 10), (3, 4)], [(1, 10), (2, 4)], [(2, 4)]])
    trace = trace_of_columns(
        "t", np.arange(4.0), np.array([14, 14, 14, 4]), np.ones(4), segments=segments
    )
    assert reused_tokens(trace, 4).tolist() == [0, 8, 12, 0]
    assert reused_tokens(trace, 5).tolist() == [0, 10, 10, 0]
    assert reused_tokens(trace, 1).tolist() == [0, 10, 14, 0]
    plain = trace_of_columns("t", np.arange(4.0), np.ones(4), np.ones(4))
    assert reused_tokens(plain, 4).tolist() == [0] * 4
