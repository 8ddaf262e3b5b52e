"""Seeded faults: each wrong rule must be noticed by the comparison with the oracle."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import jax.numpy as jnp
import pytest
from hypothesis import Phase, given

from cbjax.core import receive, rules, schedule, victims
from cbjax.core.decision import Requeue
from cbjax.core.rows import NO_ROW
from tests.drawn import drawn
from tests.policies.beside import CASES, array_log, mismatch, oracle_log

VLLM = sys.modules["cbjax.policies.vllm"]
ORCA = sys.modules["cbjax.policies.orca"]


def noticed(name, mutate, examples=150) -> bool:
    """Whether the comparison finds a difference once the policy is mutated."""

    @drawn(examples, phases=[Phase.generate])
    @given(case=CASES[name])
    def agree(case):
        assert mismatch(array_log(case, mutate(case.policy())), oracle_log(case)) is None

    try:
        agree()
    except (AssertionError, RuntimeError):  # a wrong rule may also never end
        return True
    return False


def with_knob(**changes):
    """A mutant by numbers: the policy reads other knobs than the oracle."""

    def mutate(policy):
        return replace(
            policy,
            knobs=policy.knobs | {
                name: change(policy.knobs[name]) for name, change in changes.items()
            },
        )

    return mutate


def with_rules(*patches, decide=lambda inner: inner):
    """A mutant by code: names replaced while the policy is traced, its decision altered."""

    def patched(inner):
        def traced(knobs, state, view):
            with ExitStack() as stack:
                for target, name, value in patches:
                    stack.enter_context(mock.patch.object(target, name, value))
                return decide(inner)(knobs, state, view)

        return traced

    built = {}

    def mutate(policy):
        # One function per mutant, so that it compiles once and never shares a program.
        if policy.decide not in built:
            built[policy.decide] = patched(policy.decide)
        return replace(policy, decide=built[policy.decide])

    return mutate


def altered(change):
    """Alter the decision after the policy has made it."""

    def wrap(inner):
        def decide(knobs, state, view):
            decision, carried = inner(knobs, state, view)
            return change(decision, view), carried

        return decide

    return wrap


def seen_differently(change):
    """Show the policy another view than the true one."""

    def wrap(inner):
        return lambda knobs, state, view: inner(knobs, state, change(view))

    return wrap


def rounded_down(tokens, block_size):
    return tokens // block_size


def first_runs_away(decision, view):
    """The first running request is preempted in the place of the last one."""
    count = jnp.sum(decision.preempt)
    rank = jnp.arange(view.running.shape[0])
    victims = view.per_row(jnp.where(view.seated & (rank < count), 1, 0)) > 0
    lost = victims & ~decision.preempt
    return replace(
        decision, preempt=victims, grant=jnp.where(lost, 0, decision.grant),
        kv_tokens=jnp.where(lost, 0, decision.kv_tokens),
    )


def by_row(decision, view):
    """The rows that keep their seat, in the order of their index."""
    stays = view.seated & ~decision.preempt[view.running]
    rows = jnp.sort(jnp.where(stays, view.running, LAST))
    return jnp.where(rows == LAST, NO_ROW, rows)


def open_always(view, queue, offer, open_, *more):
    return ADMIT(view, queue, offer, True, *more)


def one_victim_more(need, freed, free, seated):
    keep = SURVIVORS(need, freed, free, seated)
    return jnp.where(keep < jnp.sum(seated), jnp.maximum(keep - 1, 1), keep)


LAST = jnp.iinfo(jnp.int32).max
ADMIT, SURVIVORS = rules.admit_in_order, victims.survivors

QUICK = {
    "budget one short": ("vllm", with_knob(max_num_batched_tokens=lambda value: value - 1)),
    "one seat more": ("vllm", with_knob(max_num_seqs=lambda value: min(value + 1, 6))),
    "threshold one longer": (
        "vllm", with_knob(long_prefill_token_threshold=lambda value: value + (value > 0)),
    ),
    "gate ignored": ("vllm", with_knob(scheduler_reserve_full_isl=lambda value: False)),
    "chunks always": ("vllm", with_knob(enable_chunked_prefill=lambda value: True)),
    "wrong victim": ("vllm", with_rules(decide=altered(first_runs_away))),
    "blocks rounded down": (
        "vllm",
        with_rules((VLLM, "blocks_for", rounded_down), (victims, "blocks_for", rounded_down)),
    ),
    "priority ignored": (
        "vllm",
        with_rules(
            decide=seen_differently(
                lambda view: replace(
                    view, rows=replace(view.rows, priority=jnp.zeros_like(view.rows.priority))
                )
            )
        ),
    ),
    "admission while preempting": ("vllm", with_rules((rules, "admit_in_order", open_always))),
    "orca: one request more": ("orca", with_knob(max_bs=lambda value: min(value + 1, 6))),
    "orca: reservation rounded down": ("orca", with_rules((ORCA, "blocks_for", rounded_down))),
    "static: one request more": (
        "static", with_knob(max_batch_size=lambda value: min(value + 1, 6)),
    ),
    "static: padding the other way": ("static", with_knob(padded=lambda value: not value)),
    "static: joins a running batch": (
        "static", with_rules((rules, "admit_in_order", open_always)),
    ),
}

SLOW = {
    "one victim too many": ("vllm", with_rules((victims, "survivors", one_victim_more))),
    "victims to the back of the queue": (
        "vllm",
        with_rules(
            decide=altered(
                lambda decision, view: replace(
                    decision, requeue=jnp.full_like(decision.requeue, int(Requeue.END))
                )
            )
        ),
    ),
    "threshold kept for a lone request": (
        "vllm",
        with_rules(
            decide=seen_differently(
                lambda view: replace(view, num_waiting=view.num_waiting + 1)
            )
        ),
    ),
    "run order by row": (
        "vllm",
        with_rules(
            decide=altered(
                lambda decision, view: replace(
                    decision, running=by_row(decision, view),
                )
            )
        ),
    ),
    "a free block too many": (
        "orca",
        with_rules(
            decide=seen_differently(
                lambda view: replace(view, free_blocks=view.free_blocks - 1)
            )
        ),
    ),
    "static: longest prompt forgotten": (
        "static",
        with_rules(
            decide=seen_differently(
                lambda view: replace(
                    view, rows=replace(view.rows, prompt=jnp.maximum(view.rows.prompt - 1, 1))
                )
            )
        ),
    ),
}


@pytest.mark.parametrize("fault", sorted(QUICK))
def test_seeded_fault_is_noticed(fault):
    assert noticed(*QUICK[fault])


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted(SLOW))
def test_further_seeded_fault_is_noticed(fault):
    assert noticed(*SLOW[fault])


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (receive, "door", lambda *given: (given[1] + 1, jnp.zeros_like(given[0]))),
        (schedule, "blocks_for", lambda tokens, size: tokens // size + 1),
    ],
    ids=["door open to all", "a block too many allocated"],
)
@pytest.mark.slow
def test_fault_of_the_mechanism_is_noticed(module, name, wrong):
    with mock.patch.object(module, name, wrong):
        # A new decide function makes the loop be traced while the fault is in.
        assert noticed("vllm", with_rules(), examples=30)


def test_untouched_policy_is_not_accused():
    assert not noticed("vllm", with_knob(), examples=20)
