"""Conversations: growing prompts that share what came before, and time to think."""

from dataclasses import replace

import numpy as np
import pytest

from cbjax.workload import (
    Arrivals,
    Lengths,
    Sessions,
    Workload,
    first,
    make_sessions,
    merge,
    workload_from_trace,
)
from cbjax.workload.reuse import reused_tokens

TALK = Sessions(
    turns=Lengths("uniform", low=1, high=6),
    message_lengths=Lengths("uniform", low=5, high=50),
    answer_lengths=Lengths("uniform", low=10, high=80),
    think_median_s=4.0, think_sigma=0.5, token_s=0.02, system_tokens=32,
)
POISSON = Arrivals("poisson", rate=3.0)
CONSTANT = Sessions(
    turns=Lengths("fixed", value=3), message_lengths=Lengths("fixed", value=10),
    answer_lengths=Lengths("fixed", value=20), think_median_s=5.0, think_sigma=0.0, token_s=0.5,
)


def by_session(trace):
    """Rows of each conversation, known by the first message behind the system prompt."""
    sessions: dict[int, list[int]] = {}
    for row in range(len(trace)):
        sessions.setdefault(trace.segments.prompt(row).ids[1], []).append(row)
    return list(sessions.values())


def test_times_and_lengths_by_hand():
    """Rate 3 of requests is one conversation a second; 20 tokens of 0.5 s, then 5 s to think."""
    trace = make_sessions(CONSTANT, 2, Arrivals("constant", rate=3.0))
    assert trace.arrival_s.tolist() == [1, 2, 16, 17, 31, 32]
    assert trace.prompt_tokens.tolist() == [10, 10, 40, 40, 70, 70]
    assert trace.output_tokens.tolist() == [20] * 6
    assert [trace.class_names[index] for index in trace.classes] == (
        ["first_turn"] * 2 + ["later_turn"] * 4
    )
    assert trace.segments.prompt(4).lengths == (10, 20, 10, 20, 10)


def test_without_a_nominal_time_a_turn_waits_for_the_answer_before_it():
    trace = make_sessions(replace(CONSTANT, token_s=None), 2, Arrivals("constant", rate=3.0))
    assert trace.arrival_s.tolist() == [1, 2, 6, 7, 11, 12]  # not before
    assert trace.after.tolist() == [-1, -1, 0, 1, 2, 3]
    assert trace.think_s.tolist() == [0, 0, 5, 5, 5, 5]
    assert trace.take(np.array([1, 3, 4])).after.tolist() == [-1, 0, -1]
    workload = workload_from_trace(first(trace, 4))
    assert [one.scheduled_arrival_s for one in workload] == [1, 2, None, None]
    assert [(one.after, one.think_s) for one in workload] == [(None, 0), (None, 0), (0, 5), (1, 5)]
    with pytest.raises(ValueError, match="^traces = .*give conversations a token_s"):
        merge([trace, trace])
    for wrong, words in ((2, "name an earlier request"), (0, "at most one request may wait")):
        requests = [*workload.requests[:3], replace(workload.requests[3], after=wrong)]
        if wrong == 2:
            requests[2] = replace(requests[2], after=3)
        with pytest.raises(ValueError, match=words):
            Workload(tuple(requests), workload.arrivals, 0)


def test_a_prompt_begins_with_the_prompt_and_the_answer_before_it():
    trace = make_sessions(TALK, 40, POISSON, seed=2)
    talks = by_session(trace)
    assert len(talks) == 40 and 1 < max(map(len, talks)) <= 6
    for rows in talks:
        for one, following in zip(rows, rows[1:], strict=False):
            before, after = trace.segments.prompt(one), trace.segments.prompt(following)
            assert after.ids[: len(before.ids)] == before.ids
            assert after.lengths[: len(before.lengths)] == before.lengths
            assert after.lengths[len(before.lengths)] == trace.output_tokens[one]
            assert trace.prompt_tokens[following] == after.tokens
    # All share the system prompt; a later turn the whole prompt before it, up to a block.
    reused = reused_tokens(trace, 1)
    first_row = talks[0][0]
    for rows in talks:
        assert reused[rows[0]] == (0 if rows[0] == first_row else 32)
        for one, following in zip(rows, rows[1:], strict=False):
            assert reused[following] == trace.prompt_tokens[one]


def test_the_rate_is_that_of_requests_and_leaves_think_times_alone():
    slow = make_sessions(TALK, 3000, Arrivals("poisson", rate=2.0), seed=5)
    fast = make_sessions(TALK, 3000, Arrivals("poisson", rate=8.0), seed=5)
    for trace, rate in ((slow, 2.0), (fast, 8.0)):
        middle = (trace.arrival_s > 100) & (trace.arrival_s < 600)
        assert middle.sum() / 500 == pytest.approx(rate, rel=0.1)

    def gaps(trace):
        talks = sorted(by_session(trace), key=lambda rows: trace.segments.prompt(rows[0]).ids)
        return np.concatenate([np.diff(trace.arrival_s[rows]) for rows in talks])

    np.testing.assert_allclose(gaps(slow), gaps(fast), atol=1e-9)


def test_more_conversations_begin_with_the_same_ones_and_seeds_differ():
    few, many = (make_sessions(TALK, count, Arrivals(), seed=5) for count in (20, 60))
    assert {few.segments.prompt(row) for row in range(len(few))} <= {
        many.segments.prompt(row) for row in range(len(many))
    }
    other = make_sessions(TALK, 20, Arrivals(), seed=6)
    assert other.prompt_tokens.tolist() != few.prompt_tokens.tolist()


def test_a_conversation_ends_before_it_is_too_long():
    short = replace(TALK, longest=200)
    trace, free = (make_sessions(kind, 200, POISSON, seed=1) for kind in (short, TALK))
    assert (trace.prompt_tokens + trace.output_tokens).max() <= 200
    assert len(trace) < len(free)
    longest = free.prompt_tokens + free.output_tokens
    assert len(trace) == (longest <= 200).sum()


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: make_sessions(TALK, 0, POISSON), "sessions.count = 0"),
        (lambda: make_sessions(TALK, 3, Arrivals("recorded")), "arrivals.kind = 'recorded'"),
        (lambda: make_sessions(TALK, 3, Arrivals("closed_loop", concurrency=1)), "arrivals.kind"),
        (lambda: make_sessions(replace(TALK, longest=36), 3, POISSON), "sessions.longest = 36"),
        (lambda: replace(TALK, longest=10), "sessions.longest = 10"),
        (lambda: replace(TALK, think_sigma=-1), "sessions.think_sigma = -1"),
        (lambda: replace(TALK, token_s=float("inf")), "sessions.token_s = inf"),
    ],
)
def test_impossible_values_name_field_value_and_remedy(make, named):
    with pytest.raises(ValueError, match=f"^{named}.*: .*(use|raise)"):
        make()
