"""Block sharing of the transformers policy: beside its oracle, and rules written out by hand."""

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.policies.beside import array_log, mismatch, oracle_log
from tests.policies.oracles import transformers
from tests.policies.oracles.sglang_texts import related


@st.composite
def cases(draw):
    """A system, and requests that begin like others or go on where these ended."""
    case = draw(transformers.cases())
    return replace(
        case, knobs=case.knobs | dict(allow_block_sharing=True),
        workload=draw(related(case.workload, case.max_length)),
    )


def compare(examples, seeded) -> Counter:
    """Draw workloads, step both, and count what happened in them."""
    seen: Counter = Counter()

    @settings(
        max_examples=examples, deadline=None, derandomize=seeded, database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases())
    def agree(case):
        log = array_log(case)
        difference = mismatch(log, oracle_log(case))
        assert difference is None, f"{difference} in {case}"
        seen["workloads"] += 1
        seen["found"] += any(tokens for entry in log for _, tokens in entry.cached)
        seen["preempted"] += any(entry.preempted for entry in log)
        for entry in log:
            served = {request for request, _ in entry.scheduled}
            came = set(entry.new + entry.resumed)
            seen["seat without tokens"] += bool(came - served)
        seen["ends"] += 1

    agree()
    return seen


def test_fuzz():
    import time
    t=time.time()
    print(compare(60, True), time.time()-t)
