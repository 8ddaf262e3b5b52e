"""Block sharing of the transformers policy: beside its oracle, and rules written out by hand."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbjax import policies
from cbjax.core import merging
from cbjax.core.invariants import check
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.driver import run_on_host, run_watched
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS, Case, mismatch, oracle_log
from tests.policies.oracles import transformers

WITH_IDS = replace(LIMITS, context=48, cached_tokens=128)
WIDE = dict(max_batch_tokens=64, max_requests_per_batch=6, safety_margin=0.0)


def named(workload, groups):
    """The workload with token ids: `groups` has (group, tokens shared with the group) by request."""
    requests = []
    for one in workload.requests:
        group, shared = groups.get(one.id, (0, 0))
        ids = tuple(
            100 * (group + 1 if place < shared else 10 + one.id) + place
            for place in range(one.prompt)
        )
        requests.append(replace(one, token_ids=ids))
    return replace(workload, requests=tuple(requests))


def both(case, groups):
    """Our log, its free blocks without those that may be found, and the oracle's."""
    knobs = case.knobs | dict(allow_block_sharing=True)
    turns = run_watched(
        policies.transformers(**knobs), named(case.workload, groups), WITH_IDS, case.system(),
        watch=_watch,
    )
    log = [
        replace(entry, free_blocks=entry.free_blocks - int(watched["findable"]))
        for entry, watched in turns
    ]
    return log, oracle_log(replace(case, knobs=knobs | dict(groups=groups)))


def _watch(state, plan):
    return dict(findable=merging.findable(state.blocks))


@st.composite
def cases(draw):
    """A system and a workload of requests that begin alike."""
    case = draw(transformers.cases())
    lengths = st.integers(0, 6).map(lambda blocks: blocks * case.block_size)
    shared = st.one_of(lengths, st.integers(0, 30))
    groups = {
        one.id: (draw(st.sampled_from([0, 0, 1])), draw(shared)) for one in case.workload.requests
    }
    return case, groups


def compare(examples, seeded):
    seen: Counter = Counter()

    @settings(
        max_examples=examples, deadline=None, derandomize=seeded, database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=cases())
    def agree(drawn):
        case, groups = drawn
        log, theirs = both(case, groups)
        difference = mismatch(log, theirs)
        assert difference is None, f"{difference} in {case} {groups}"
        seen["workloads"] += 1
        cached = [{row: tokens for row, tokens in entry.cached if tokens} for entry in log]
        seen["found"] += any(cached)
        seen["preempted"] += any(entry.preempted for entry in log)

    agree()
    return seen


def test_fuzz():
    print(compare(400, True))
