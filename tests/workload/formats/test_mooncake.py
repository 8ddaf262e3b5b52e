"""Mooncake: milliseconds, blocks of 512 tokens, sharing by leading ids."""

import json

import numpy as np
import pytest

from cbjax.workload import read_trace, scale_lengths, segment_token_ids, spread_ticks
from cbjax.workload.reuse import reused_tokens
from tests.workload.formats.files import real, write

ROWS = [
    {"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 1500, "output_length": 7, "hash_ids": [0, 1, 3]},
    {"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [4]},
]


def lines(*rows) -> str:
    return "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)


def test_rows_in_the_published_form(tmp_path):
    trace = read_trace(write(tmp_path, "m.jsonl", lines(*ROWS)), "mooncake")
    assert trace.arrival_s.tolist() == [0, 0, 3]
    assert trace.prompt_tokens.tolist() == [1100, 1500, 512]
    assert trace.segments.prompt(0).ids == (0, 1, 2)
    assert trace.segments.prompt(0).lengths == (512, 512, 76)
    assert trace.segments.prompt(2).lengths == (512,)


def test_equal_leading_ids_are_equal_tokens_and_the_last_block_is_cut(tmp_path):
    trace = read_trace(write(tmp_path, "m.jsonl", lines(*ROWS)), "mooncake")
    first, second, third = (
        segment_token_ids(1, trace.segments.prompt(row), 1000) for row in range(3)
    )
    assert [len(first), len(second), len(third)] == [1100, 1500, 512]
    assert first[:1024] == second[:1024] and first[1024:] != second[1024:1100]
    assert len(set(first[:512])) > 300 and third != first[:512]


def test_lengths_scale_with_their_sharing(tmp_path):
    trace = read_trace(write(tmp_path, "m.jsonl", lines(*ROWS)), "mooncake")
    small = scale_lengths(trace, prompt=1 / 32)
    assert small.prompt_tokens.tolist() == [35, 47, 16]
    assert small.segments.prompt(0).lengths == (16, 16, 3)
    assert reused_tokens(trace, 512).tolist() == [0, 1024, 0]
    assert reused_tokens(small, 16).tolist() == [0, 32, 0]


def test_a_last_block_without_an_id_is_shared_with_nobody(tmp_path):
    rows = [dict(ROWS[0], hash_ids=[0, 1])] * 2
    trace = read_trace(write(tmp_path, "m.jsonl", lines(*rows)), "mooncake")
    first, second = (segment_token_ids(1, trace.segments.prompt(row), 9) for row in (0, 1))
    assert first[:1024] == second[:1024] and first[1024:] != second[1024:]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("{no json\n", "no JSON"),
        ("[1, 2]\n", "no JSON object"),
        (dict(ROWS[0], timestamp="0"), "timestamp is no number from 0"),
        (dict(ROWS[0], input_length=0), "input_length is no whole number from 1"),
        (dict(ROWS[0], output_length=None), "output_length is no whole number from 1"),
        (dict(ROWS[0], output_length=True), "output_length is no whole number from 1"),
        (dict(ROWS[0], hash_ids=[1]), "hash_ids does not have one id per 512 tokens"),
        (dict(ROWS[0], hash_ids=[1, 2, 3, 4]), "hash_ids does not have one id per 512 tokens"),
        (dict(ROWS[0], hash_ids=["a", 2, 3]), "hash_ids is no list of whole numbers"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_or_skipped_and_counted(tmp_path, bad, reason):
    path = write(tmp_path, "m.jsonl.gz", lines(ROWS[0], "\n", bad, ROWS[1]))
    with pytest.raises(ValueError, match=f"1 bad rows, of them\n  line 3: {reason}"):
        read_trace(path, "mooncake")
    with pytest.warns(UserWarning, match=f"line 3: {reason}"):
        trace = read_trace(path, "mooncake", on_bad_row="skip")
    assert trace.prompt_tokens.tolist() == [1100, 1500]


@pytest.mark.parametrize(
    ("name", "rows", "span", "stamps", "hits", "blocks"),
    [("conversation", 12_031, 3537, 1180, 0.366, 182_790),
     ("synthetic", 3_993, 1022, 3982, 0.640, 43_924)],
)
def test_the_published_files(name, rows, span, stamps, hits, blocks):
    trace = read_trace(real(f"mooncake/{name}_trace.jsonl"), "mooncake")
    assert len(trace) == rows and trace.duration_s == pytest.approx(span, abs=0.5)
    assert len(np.unique(trace.arrival_s)) == stamps
    ids = trace.segments.ids
    assert len(np.unique(ids)) == blocks
    found = reused_tokens(trace, 512).sum() / (512 * len(ids))
    assert found == pytest.approx(hits, abs=0.003)
    scaled = scale_lengths(trace, prompt=1 / 32)
    assert reused_tokens(scaled, 16).sum() / (16 * len(ids)) == pytest.approx(found, abs=1e-4)


def test_the_ticks_of_the_conversation_trace_are_no_bursts():
    trace = read_trace(real("mooncake/conversation_trace.jsonl"), "mooncake")

    def variation(times):
        gaps = np.diff(times)
        return gaps.std() / gaps.mean()

    assert variation(trace.arrival_s) > 3
    assert variation(spread_ticks(trace, seed=1).arrival_s) == pytest.approx(1, abs=0.05)
