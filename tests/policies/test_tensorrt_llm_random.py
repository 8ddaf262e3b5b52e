"""TensorRT-LLM on random workloads: beside its oracle, its invariants, seeded faults."""

import sys

import jax.numpy as jnp
import pytest
from hypothesis import given

from tests.drawn import drawn
from tests.policies.beside import CASES, array_log
from tests.policies.test_mutants import noticed, with_knob, with_rules
from tests.policies.test_oracles import compare, describe

MODULE = sys.modules["cbjax.policies.tensorrt_llm"]  # the package's name is the function's


def test_it_decides_as_its_oracle(report_line):
    seen = compare("tensorrt_llm", 160)
    report_line(describe("tensorrt_llm", seen))
    for what in ("preempted", "resumed", "refused", "aborted", "backlog", "stopped"):
        assert seen[what] >= seen["workloads"] / 20, what


@pytest.mark.slow
def test_it_decides_as_its_oracle_on_many_more(report_line):
    report_line(describe("tensorrt_llm", compare("tensorrt_llm", 1000)))


# The capacity stage.


class Book:
    """What each request has computed and produced, kept from the log alone."""

    def __init__(self, workload):
        self.prompts = [request.prompt for request in workload.requests]
        self.computed, self.goal, self.running = {}, {}, set()

    def generating(self):
        return {id for id in self.running if self.computed[id] >= self.goal[id]}

    def follow(self, entry):
        self.running -= set(entry.aborted)
        for id in entry.preempted:
            self.prompts[id] = self.computed[id] + 1 if id in self.generating() else self.goal[id]
            self.running.discard(id)
        for id in entry.new + entry.resumed:
            self.computed[id], self.goal[id] = 0, self.prompts[id]
            self.running.add(id)
        for id, tokens in entry.scheduled:
            self.computed[id] += tokens
        self.running -= set(entry.finished)


def test_invariants_of_every_decision():
    """Budget kept; no pause but in MAX_UTILIZATION; nobody who decodes is left out."""
    kinds = set()

    @drawn(150)
    @given(case=CASES["tensorrt_llm"])
    def hold(case):
        kind, budget = case.knobs["capacity_scheduler_policy"], case.knobs["max_num_tokens"]
        kinds.add(kind)
        book = Book(case.workload)
        for entry in array_log(case):
            book.running -= set(entry.aborted)
            decoding, before = book.generating(), set(book.running)
            served = dict(entry.scheduled)
            assert sum(served.values()) <= budget
            if kind == "MAX_UTILIZATION":
                # Victims are the youngest of those that had started.
                stay = before - set(entry.preempted)
                assert all(old < id for old in stay for id in entry.preempted)
            else:
                assert not entry.preempted
                assert decoding <= set(served)
            if kind == "STATIC_BATCH":
                assert not (decoding and entry.new)
            present = before | set(entry.queue + entry.new + entry.resumed)
            chunks = case.knobs["enable_chunked_prefill"]
            waits = chunks or entry.limited_by == "wait_timer"
            if present and kind == "MAX_UTILIZATION" and not waits:
                assert min(present) in served, "the oldest is always served"
            assert not set(entry.preempted) & set(served)
            book.follow(entry)

    hold()
    assert len(kinds) == 3


FAULTS = {
    "chunks the other way": with_knob(equal_progress=lambda value: not value),
    "one token more": with_knob(max_num_tokens=lambda value: value + 1),
    "one seat more": with_knob(max_batch_size=lambda value: min(value + 1, 6)),
    "unit one larger": with_knob(chunk_unit_size=lambda value: value + (value > 0)),
    "static batch admits": with_knob(static_batch=lambda value: False),
    "waits one iteration more": with_knob(batch_wait_timeout_iters=lambda value: value + 1),
    "waits one millisecond more": with_knob(batch_wait_timeout_ms=lambda value: value + 1),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_seeded_fault_is_noticed(fault):
    assert noticed("tensorrt_llm", FAULTS[fault])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("blocks_for", lambda tokens, size: tokens // size),
        ("first_come", lambda want, capacity, unit: jnp.clip(
            capacity - (jnp.cumsum(want) - want), 0, want)),
    ],
    ids=["blocks rounded down", "chunks of any length"],
)
def test_further_seeded_fault_is_noticed(name, wrong):
    assert noticed("tensorrt_llm", with_rules((MODULE, name, wrong)))
