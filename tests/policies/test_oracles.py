"""Each array policy beside its plain-Python oracle, decision by decision, on random workloads."""

from collections import Counter

import pytest
from hypothesis import given

from tests.drawn import drawn
from tests.policies.beside import CASES, array_log, mismatch, oracle_log

QUICK = {
    "vllm": 260, "vllm_0_11": 80, "orca": 100, "static": 100, "vllm_v0": 80, "transformers": 80,
}
SLOW = {
    "vllm": 1000, "vllm_0_11": 1000, "orca": 1000, "static": 1000, "vllm_v0": 1000,
    "transformers": 1000,
}


def compare(name: str, examples: int) -> Counter:
    """Draw workloads, the same in every run, step both, and count what happened in them."""
    seen: Counter = Counter()

    @drawn(examples)
    @given(case=CASES[name])
    def agree(case):
        log = array_log(case)
        difference = mismatch(log, oracle_log(case))
        assert difference is None, f"{difference} in {case}"
        seen["workloads"] += 1
        seen["iterations"] += len(log)
        seen["decisions"] += sum(len(entry.scheduled) for entry in log)
        for what in ("preempted", "resumed", "refused", "aborted", "backlog", "extra_tokens"):
            seen[what] += any(getattr(entry, what) for entry in log)
        seen["hits"] += any(tokens for entry in log for _, tokens in entry.cached)
        seen.update({word for entry in log for _, word in entry.refused})
        seen["stopped"] += any("stop" in entry.finish_reasons for entry in log)

    agree()
    return seen


def describe(name: str, seen: Counter) -> str:
    total = seen["workloads"]
    shares = ", ".join(
        f"{what} {seen[what] / total:.0%}"
        for what in ("preempted", "resumed", "refused", "aborted", "backlog", "stopped")
    )
    return (
        f"{name} beside its oracle: {total} workloads, {seen['iterations']} iterations, "
        f"{seen['decisions']} decisions, 0 differences; workloads with {shares}"
    )


@pytest.mark.parametrize("name", sorted(QUICK))
def test_array_policy_decides_as_its_oracle(name, report_line):
    seen = compare(name, QUICK[name])
    report_line(describe(name, seen))
    assert seen["workloads"] >= QUICK[name]
    check_variety(name, seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_array_policy_decides_as_its_oracle_on_many_more(name, report_line):
    seen = compare(name, SLOW[name])
    report_line(describe(name, seen))
    check_variety(name, seen)


def check_variety(name: str, seen: Counter) -> None:
    """The workloads must reach what they are drawn for."""
    total = seen["workloads"]
    # Policies that sort the queue are drawn no more requests than they see.
    sorts = ("vllm_v0", "transformers")
    for what in ("refused", "aborted", "stopped", *(() if name in sorts else ("backlog",))):
        assert seen[what] >= total / 20, f"{what}: {seen[what]} of {total}"
    if name == "vllm":
        assert seen["preempted"] >= total / 3, f"{seen['preempted']} of {total} preempt"
        assert seen["resumed"] >= total / 5
    elif name in ("orca", "static"):
        assert not seen["preempted"]
    else:
        assert seen["preempted"] >= total / 10
    assert bool(seen["extra_tokens"]) == (name == "static")
