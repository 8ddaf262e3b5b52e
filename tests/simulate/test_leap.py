"""A leap leaves behind what as many plain turns do, bit for bit, for every policy."""

from collections import Counter

import pytest
from hypothesis import given

from cbjax.simulate import costs
from tests.drawn import drawn
from tests.policies.beside import CASES
from tests.policies.oracles import composed
from tests.simulate.against import differences, run

DRAWN = CASES | dict(composed=composed.cases())
LEAPS = {
    "vllm", "vllm_0_11", "orca", "static", "sarathi", "sglang", "tensorrt_llm", "tgi", "triton",
    "composed", "vllm_v0",
}
QUICK = ("vllm", "static")  # each policy is a program of its own to compile
COSTS = [
    costs.linear(base_s=0.0041, per_token_s=2.13e-4, per_context_s=3.7e-7),
    costs.linear(base_s=1.0),
]


def compare(name: str, examples: int) -> Counter:
    """Draw systems and workloads, leap and walk, and count what was leaped over."""
    seen: Counter = Counter()

    @drawn(examples)
    @given(case=DRAWN[name])
    def same(case):
        cost = COSTS[seen["workloads"] % 2]
        pace = 0.0173 if cost is COSTS[0] else 3.0
        leaped = run(case, cost, pace=pace)
        walked = run(case, cost, pace=pace, leap=False)
        assert differences(leaped, walked) == [], case
        seen["workloads"] += 1
        if not isinstance(leaped, str):
            seen["iterations"] += leaped.iteration_count
            seen["turns"] += leaped.turns
            seen["walked"] += walked.turns
            seen["preempted"] += bool(leaped.kept[:, 14].max(initial=0) > 0)

    same()
    return seen


def check(name: str, examples: int) -> None:
    seen = compare(name, examples)
    if name in LEAPS:
        # With lag or a prompt of its own turn there is less to leap over in so small a system.
        assert seen["turns"] < (0.98 if name == "sglang" else 0.8) * seen["walked"], seen


@pytest.mark.parametrize("name", QUICK)
def test_a_leap_is_as_many_turns(name):
    check(name, 40)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_leap_is_as_many_turns_for_every_policy(name):
    check(name, 80 if name in LEAPS else 8)
