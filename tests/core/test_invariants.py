"""The invariant check: silent over whole runs, and loud for every kind of corruption."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given

from cbjax import policies
from cbjax.core import invariants
from cbjax.core.blocks import NO_BLOCK
from cbjax.core.commit import commit_jit
from cbjax.core.inbox import empty_inbox
from cbjax.core.invariants import InvariantError
from cbjax.core.limits import system
from cbjax.core.rows import NO_REQUEST, NO_ROW, Status
from cbjax.core.schedule import schedule_jit
from cbjax.core.state import initial_state
from cbjax.core.time import Time
from cbjax.parity.driver import run_on_host
from tests.drawn import drawn
from tests.policies.beside import CASES, LIMITS, Case, mismatch, oracle_log

# The oracle tests hold these to every decision already; their programs take long to compile.
SLOW = {"sglang", "sglang_radix", "sarathi", "tgi_radix", "transformers", "ollama remembering"}


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        pytest.param(name, examples, marks=marks)
        for name in sorted(CASES)
        for examples, marks in ((5, ()), (16, pytest.mark.slow))
        if marks or name not in SLOW
    ],
)
def test_invariants_hold_after_every_verb(name, examples):
    """FAULTS A11, C10: over random workloads, preemptions and aborts among them."""

    @drawn(examples)
    @given(case=CASES[name])
    def hold(case: Case):
        last = None

        def check(state, plan):
            nonlocal last
            before = None if plan is not None else last
            snapshot = invariants.check(state, case.limits, plan, before)
            last = snapshot if plan is None else last

        log = run_on_host(case.policy(), case.workload, case.limits, case.system(), check=check)
        assert mismatch(log, oracle_log(case)) is None
        assert not last.known

    hold()


@pytest.fixture(scope="module")
def busy():
    """A state between the verbs, as numpy: two run (rows 0, 1), one waits (row 2)."""
    policy = policies.vllm(max_num_batched_tokens=48, max_num_seqs=2)
    numbers = system(LIMITS, block_size=4, num_blocks=12, max_length=48)
    state = initial_state(policy, LIMITS, numbers)
    inbox = empty_inbox(LIMITS)
    inbox.request[:3], inbox.prompt[:3], inbox.known[:3] = [70, 71, 72], 9, 9
    inbox = replace(inbox, count=np.int32(3))
    state, plan = schedule_jit(policy, state, inbox, LIMITS)
    return jax.tree.map(np.array, (state, plan))


def corrupt(state, part, name, index, value):
    """The state with one number changed."""
    owner = getattr(state, part) if part else state
    array = np.array(getattr(owner, name))
    array[index] = value
    owner = replace(owner, **{name: array})
    return replace(state, **{part: owner}) if part else owner


def test_whole_state_passes(busy):
    state, plan = busy
    snapshot = invariants.check(state, LIMITS, plan)
    assert snapshot.known == {70: 9, 71: 9, 72: 9}


CORRUPTIONS = {
    "unknown status": ("rows", "status", 2, 9, "one state per request", "row 2"),
    "status without request": ("rows", "request", 2, NO_REQUEST, "one state per request", "row 2"),
    "request in two rows": ("rows", "request", 2, 70, "one row per request", "[0, 2]"),
    "computed beyond known": ("rows", "known", 0, 8, "computed <= known", "request 70"),
    "prompt beyond known": ("rows", "prompt", 2, 11, "prompt <= known", "request 72"),
    "peak forgotten": ("rows", "peak", 1, 3, "computed <= peak", "request 71"),
    "negative progress": ("rows", "computed", 2, -1, "0 <= computed", "request 72"),
    "more in flight than computed": (
        "rows", "in_flight", 0, 10, "0 <= in_flight <= computed", "request 70",
    ),
    "longer than possible": ("rows", "known", 2, 49, "known <= max_length", "49 > 48"),
    "seat twice": ("", "running", 1, 0, "run order", "twice"),
    "seat lost": ("", "running", 1, NO_ROW, "run order", "num_running = 2"),
    "waits and runs": ("rows", "status", 1, Status.WAITING, "run order", "request 71"),
    "runs without a seat": ("rows", "status", 2, Status.RUNNING, "run order", "request 72"),
    "more held than the table has": (
        "rows", "held", 0, 49, "held matches the table", "request 70",
    ),
    "negative holding": ("rows", "held", 2, -1, "held matches the table", "request 72"),
    "hole in a table": (
        "blocks", "tables", (0, 1), NO_BLOCK, "held matches the table", "request 70",
    ),
    "block that does not exist": ("blocks", "tables", (0, 1), 64, "blocks exist", "block 64"),
    "block in two tables": (
        "blocks", "tables", (1, 0), 0, "references match the tables", "[70, 71]",
    ),
    "negative reference": ("blocks", "refs", 9, -1, "references >= 0", "block 9"),
    "reference without owner": (
        "blocks", "refs", 9, 1, "references match the tables", "block 9",
    ),
    "free count wrong": ("blocks", "free", (), 7, "free + used = all blocks", "7 free + 6 used"),
    "free block twice": ("blocks", "ring", 7, 6, "a free block is listed once", "block 6"),
    "free block in use": ("blocks", "ring", 7, 0, "a free block has no owner", "block 0"),
}


@pytest.mark.parametrize("kind", sorted(CORRUPTIONS))
def test_corruption_is_named(busy, kind):
    part, name, index, value, invariant, words = CORRUPTIONS[kind]
    with pytest.raises(InvariantError) as error:
        invariants.check(corrupt(busy[0], part, name, index, value), LIMITS)
    assert error.value.invariant == invariant
    assert words in str(error.value)


def test_running_request_without_kv_is_named(busy):
    """Table, references and free count agree, yet a computed token has no place."""
    state = busy[0]
    block = state.blocks.tables[0, 2]
    state = corrupt(state, "rows", "held", 0, 2)
    state = corrupt(state, "blocks", "refs", block, 0)
    with pytest.raises(InvariantError, match="KV covers what is computed.*request 70"):
        invariants.check(state, LIMITS)


def test_waiting_request_with_blocks_is_named(busy):
    state = corrupt(busy[0], "rows", "held", 2, 1)
    state = corrupt(state, "blocks", "tables", (2, 0), 6)
    state = corrupt(state, "blocks", "refs", 6, 1)
    with pytest.raises(InvariantError, match="only running requests hold blocks.*WAITING"):
        invariants.check(state, LIMITS)


PLANS = {
    "sum wrong": ("scheduled_tokens", (), 17, "scheduled tokens", "17"),
    "too much padding": ("extra_tokens", (), 60, "scheduled tokens <= limits.tokens", "18 + 60"),
    "grant without a seat": ("grants", 5, 1, None, "seat 5"),
    "grant not in flight": ("grants", 0, 8, None, "request 70"),
}


@pytest.mark.parametrize("kind", sorted(PLANS))
def test_plan_that_does_not_fit_is_named(busy, kind):
    name, index, value, invariant, words = PLANS[kind]
    state, plan = busy
    plan = corrupt(plan, "", name, index, value)
    if name == "grants":
        plan = replace(plan, scheduled_tokens=np.sum(plan.grants))
        invariant = "grants to running rows"
    with pytest.raises(InvariantError) as error:
        invariants.check(state, LIMITS, plan)
    assert error.value.invariant == invariant
    assert words in str(error.value)


def test_tokens_in_flight_without_a_seat_are_named(busy):
    state, plan = busy
    state = corrupt(state, "rows", "computed", 2, 1)
    state = corrupt(state, "rows", "peak", 2, 1)
    state = corrupt(state, "rows", "in_flight", 2, 1)
    with pytest.raises(InvariantError, match="request 72.*no seat"):
        invariants.check(state, LIMITS, plan)


def test_progress_and_time(busy):
    state, plan = jax.device_get(busy)
    before = invariants.check(state, LIMITS, plan)
    with pytest.raises(InvariantError, match="progress or time"):
        invariants.check(state, LIMITS, before=before)
    later = replace(state, clock=Time(np.int32(1), np.int32(0)))
    after = invariants.check(later, LIMITS, before=before)
    with pytest.raises(InvariantError, match="time never runs backwards"):
        invariants.check(state, LIMITS, before=after)
    lost = corrupt(corrupt(later, "rows", "known", 2, 8), "rows", "prompt", 2, 8)
    with pytest.raises(InvariantError, match="tokens are never lost.*request 72"):
        invariants.check(lost, LIMITS, before=before)
    tokens, stopped = np.zeros(LIMITS.rows, np.int32), np.zeros(LIMITS.rows, bool)
    moved, _ = commit_jit(jax.tree.map(np.copy, state), plan, tokens, stopped, state.clock)
    invariants.check(moved, LIMITS, before=before)
