"""Qwen-Bailian: seconds, blocks of 16 tokens, the kind of input as class."""

import json

import pytest

from cbjax.workload import read_trace
from cbjax.workload.reuse import reused_tokens
from tests.workload.formats.files import write

FIRST = {
    "chat_id": 55, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40,
    "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091],
}
SECOND = {
    "chat_id": 159, "parent_chat_id": 55, "timestamp": 75.5, "input_length": 64,
    "output_length": 5, "type": "search", "turn": 2, "hash_ids": [1089, 1090, 7, 8],
}


def write_rows(folder, *rows):
    return write(folder, "q.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def test_rows_in_the_published_form(tmp_path):
    trace = read_trace(write_rows(tmp_path, FIRST, SECOND), "qwen_bailian")
    assert trace.arrival_s == pytest.approx([0, 14.386])
    assert trace.prompt_tokens.tolist() == [40, 64] and trace.output_tokens.tolist() == [132, 5]
    assert [trace.class_names[index] for index in trace.classes] == ["text", "search"]
    assert trace.segments.prompt(0).lengths == (16, 16, 8)
    assert reused_tokens(trace, 16).tolist() == [0, 32]


def test_a_row_whose_blocks_do_not_cover_its_prompt(tmp_path):
    path = write_rows(tmp_path, FIRST, dict(SECOND, hash_ids=[1, 2]))
    with pytest.raises(ValueError, match="line 2: hash_ids does not have one id per 16 tokens"):
        read_trace(path, "qwen_bailian")


def test_a_prompt_shorter_than_a_block_may_have_no_id(tmp_path):
    path = write_rows(tmp_path, FIRST, dict(SECOND, input_length=9, hash_ids=[]))
    trace = read_trace(path, "qwen_bailian")
    assert trace.segments.ids.dtype == "int64" and trace.segments.prompt(1).lengths == (9,)
