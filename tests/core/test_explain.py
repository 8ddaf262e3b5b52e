"""Explanations read like sentences and name who, where and why."""

from dataclasses import replace

import pytest

from cbjax.core.explain import explain, first_difference, why_waiting
from cbjax.core.log import IterationRecord

ENTRY = IterationRecord(
    iteration=0, scheduled=((0, 4),), new=(0,), resumed=(), cached=(), preempted=(), finished=(),
    finish_reasons=(), free_blocks=1, waiting=2, running=1, backlog=0, refused=(), aborted=(),
    queue=(5, 7), queue_blocks=(3, 1), limited_by="blocks", extra_tokens=0,
)


def test_a_wait_names_place_blocker_and_reason():
    text = why_waiting([ENTRY], 7, 0)
    assert "2. in the queue" in text and "request 5" in text
    assert "3 KV blocks, 1 are free" in text
    assert "stopped at it" in why_waiting([ENTRY], 5, 0)


def test_a_victim_is_told_so():
    assert "preempted" in why_waiting([replace(ENTRY, preempted=(5,))], 5, 0)


@pytest.mark.parametrize(("request_id", "iteration", "words"), [(0, 0, "did not wait"),
                                                                (5, 3, "the log holds 0..0")])
def test_questions_without_an_answer(request_id, iteration, words):
    with pytest.raises(ValueError, match=words):
        explain([ENTRY], request_id=request_id, iteration=iteration)


def test_the_first_difference_wins():
    second = replace(ENTRY, iteration=1)
    changed = replace(second, scheduled=((0, 1),), free_blocks=9)
    difference = first_difference([ENTRY, second], [ENTRY, changed])
    assert (difference.iteration, difference.field) == (1, "scheduled")
    assert "((0, 4),)" in explain([ENTRY, second], [ENTRY, changed])
    assert explain([ENTRY], [ENTRY]) == "both runs decide alike"
    assert first_difference([ENTRY], [ENTRY, second]).field == "iterations"
