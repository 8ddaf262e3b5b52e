"""Conservation laws of a simulation: no request is lost, and tokens in are tokens out."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given

from cbjax.simulate import costs
from cbjax.simulate.results import tables
from tests.drawn import drawn
from tests.policies.beside import CASES
from tests.simulate.against import run

COST = costs.linear(base_s=1.0, per_token_s=0.01)
QUICK = ("vllm", "static")  # their programs are those of the leaps
# Of the others, who computes no token for nothing, shares no prefix and ends no answer early.
ALL = ("vllm", "vllm_0_11", "vllm_v0", "orca", "static", "sarathi", "tensorrt_llm", "triton")
TIMES = ("scheduled_arrival_s", "visible_s", "admitted_s", "first_token_s", "finished_s")


def check(case, done) -> Counter:
    """The laws for one simulation; returns what was seen."""
    made = tables(done)
    requests, iterations = made.requests, made.iterations
    asked = case.workload.requests
    assert requests["request_id"].to_list() == [one.id for one in asked]
    assert requests["prompt_tokens"].to_list() == [one.prompt for one in asked]
    assert requests["finished_s"].null_count() == 0
    assert set(requests["finish_reason"]) <= {"length", "refused"}
    served = requests.filter(pl.col("finish_reason") == "length")
    # A sequence may be so long, and alone on an empty pool it must end; its last token needs no KV.
    longest = min(
        case.max_length,
        case.num_blocks * case.block_size + (not case.policy().traits.reserves_output),
    )
    wanted = [
        min(one.max_tokens or longest - one.prompt, longest - one.prompt) for one in asked
    ]
    assert served["output_tokens"].to_list() == [wanted[id] for id in served["request_id"]]
    assert requests.filter(pl.col("finish_reason") == "refused")["output_tokens"].sum() == 0
    # Every position but that of the last token is computed once, and again after a preemption.
    positions = (served["prompt_tokens"] + served["output_tokens"] - 1).sum()
    again = requests["recomputed_tokens"].sum()
    assert iterations["scheduled_tokens"].sum() == positions + again
    assert iterations["finished"].sum() == len(served)
    assert iterations["admitted"].sum() == len(served) + requests["preemptions"].sum()
    if done.deliver_at == "token":
        assert done.gaps.sum() == (served["output_tokens"] - 1).sum()
    free, used = iterations["free_blocks"], iterations["used_blocks"]
    assert ((free + used) == case.num_blocks).all() and free.min() >= 0
    times = served.select(TIMES).to_numpy()
    assert (np.diff(times, axis=1) >= 0).all()
    spent = iterations["duration_s"].to_numpy()
    starts = iterations["start_s"].to_numpy()
    assert (starts[1:] >= starts[:-1] + spent[:-1] - 1e-8).all()
    return Counter(
        requests=len(requests), served=len(served), preempted=requests["preemptions"].sum() > 0,
        again=again > 0,
    )


def obeys(name: str, examples: int) -> Counter:
    seen: Counter = Counter()

    @drawn(examples)
    @given(case=CASES[name])
    def laws_hold(case):
        done = run(case, COST, pace=3.0)
        if not isinstance(done, str):
            seen.update(check(case, done))

    laws_hold()
    assert 0 < seen["served"] < seen["requests"]  # some were refused
    return seen


@pytest.mark.parametrize("name", QUICK)
def test_no_request_is_lost_and_tokens_in_are_tokens_out(name):
    seen = obeys(name, 30)
    assert name == "static" or (seen["preempted"] and seen["again"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in QUICK])
def test_conservation_for_every_policy(name):
    obeys(name, 20)
