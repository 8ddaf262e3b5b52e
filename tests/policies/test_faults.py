"""Faults seen elsewhere, as tests of every policy; a skip says why a rule makes one moot here.

Those of a prefix cache are in the engine's tests of sharing, where tokens can be compared.
"""

import pytest

from cbjax import policies
from cbjax.core.invariants import check
from cbjax.core.limits import system
from cbjax.parity.driver import run, run_on_host
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS

SIZE, LENGTH = 4, 48
BUILD = {
    "composed": lambda: policies.composed(max_num_batched_tokens=16, max_num_seqs=4),
    "llama_cpp": lambda: policies.llama_cpp(n_parallel=4, n_batch=16, kv_unified=True),
    "ollama": lambda: policies.ollama(num_parallel=1, num_batch=16),
    "orca": lambda: policies.orca(max_bs=4),
    "sarathi": lambda: policies.sarathi(chunk_size=16, max_num_seqs=4),
    # Not one iteration ahead, where an ended request has a useless step more.
    "sglang": lambda: policies.sglang(
        max_running_requests=4, chunked_prefill_size=16, disable_overlap_schedule=True
    ),
    "static": lambda: policies.static(max_batch_size=4, padding="ragged"),
    "tensorrt_llm": lambda: policies.tensorrt_llm(
        max_batch_size=4, max_num_tokens=16, enable_chunked_prefill=True,
        capacity_scheduler_policy="MAX_UTILIZATION",
    ),
    "tgi": lambda: policies.tgi(max_batch_prefill_tokens=16, max_batch_size=4),
    "transformers": lambda: policies.transformers(max_batch_tokens=16, max_requests_per_batch=4),
    "triton": lambda: policies.triton(max_batch_size=4),
    "vllm": lambda: policies.vllm(
        max_num_batched_tokens=16, max_num_seqs=4, scheduler_reserve_full_isl=False
    ),
    "vllm_0_11": lambda: policies.vllm_0_11(max_num_batched_tokens=16, max_num_seqs=4),
    "vllm_v0": lambda: policies.vllm_v0(max_num_batched_tokens=48, max_num_seqs=4),
}
WHOLE_BATCHES = ("static", "triton")
PREFILL_FIRST = {
    "sglang": "new prompts before decodes is its default; enable_mixed_chunk bounds the gap",
    "vllm_v0": "new prompts before decodes is its default; enable_chunked_prefill bounds the gap",
}
RESERVES = ("ollama", "orca", "static", "tgi", "triton")
WHOLE_PROMPTS = ("orca", "static", "triton", "vllm_v0")
QUICK = ("llama_cpp", "tgi", "vllm")


def every(names=tuple(BUILD)):
    """All policies; one program is compiled for each, so most run in the slow suite."""
    return pytest.mark.parametrize(
        "name",
        [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names],
    )


def of(name, num_blocks):
    length = min(LENGTH, num_blocks * SIZE)
    numbers = dict(block_size=SIZE, num_blocks=num_blocks, max_length=length)
    return BUILD[name](), LIMITS, system(LIMITS, **numbers)


def serve(name, requests, num_blocks=40):
    """(arrival, prompt, max_tokens) each, through the policy; the log."""
    policy, limits, numbers = of(name, num_blocks)
    workload = Workload(tuple(Request(id, *one) for id, one in enumerate(requests)))
    return run(policy, workload, limits, numbers)


def ended(log):
    return {id for entry in log for id in entry.finished}


def outputs(log, prompts):
    """Output tokens of each request: how often its known tokens were computed to the end."""
    made, computed = dict.fromkeys(prompts, 0), dict.fromkeys(prompts, 0)
    for entry in log:
        for id in entry.preempted:
            computed[id] = 0
        for id, tokens in entry.scheduled:
            computed[id] += tokens
            made[id] += computed[id] == prompts[id] + made[id]
    return made


def test_every_policy_is_among_them():
    assert set(BUILD) == set(policies.names)


@every()
def test_what_never_fits_harms_nobody(name):
    """A1, A3, E3: it is refused with a reason; the one behind it is served."""
    log = serve(name, [(0, 20, 4), (0, 4, 4)], num_blocks=4)
    assert [id for entry in log for id, _ in entry.refused] == [0]
    assert ended(log) == {1}


@every()
def test_a_small_request_behind_one_that_does_not_fit(name):
    """A2: strictly first come, first served."""
    if name == "ollama":
        pytest.skip("every slot owns a whole context: what is admitted fits")
    if name == "transformers":
        pytest.skip("it may pass, by a stated rule that test_transformers shows")
    # The first leaves 3 of 12 blocks, the second needs more, the third would fit.
    log = serve(name, [(0, 30, 6), (1, 30, 2), (1, 2, 2)], num_blocks=12)
    first = {id: entry.iteration for entry in reversed(log) for id in entry.new}
    assert first[1] <= first[2]
    assert ended(log) == {0, 1, 2}


@every()
def test_steady_arrivals_do_not_stop_a_decode(name):
    """A4: between two tokens lies at most one iteration of others."""
    if name in PREFILL_FIRST:
        pytest.skip(PREFILL_FIRST[name])
    log = serve(name, [(0, 4, 20), *((when, 4, 1) for when in range(1, 20))], num_blocks=64)
    ran = [entry.iteration for entry in log if 0 in dict(entry.scheduled)]
    assert max(later - sooner for sooner, later in zip(ran, ran[1:], strict=False)) <= 2
    assert ended(log) == set(range(20))


@every()
def test_a_long_prompt_in_chunks_does_not_stop_a_decode(name):
    """A5: the decode advances beside it, or with one chunk between, and the prompt ends."""
    if name in WHOLE_PROMPTS:
        pytest.skip("prompts are not split: the gap is one iteration, however long")
    if name == "ollama":
        pytest.skip("with one slot nothing runs beside a decode")
    if name == "sglang":
        pytest.skip(PREFILL_FIRST[name])
    log = serve(name, [(0, 4, 20), (1, 44, 2)])
    ran = [entry.iteration for entry in log if 0 in dict(entry.scheduled)]
    assert ran == list(range(20))
    assert ended(log) == {0, 1}


@every()
def test_any_number_of_prompts_may_be_half_computed(name):
    """A9: three long prompts at once; each is computed exactly once."""
    log = serve(name, [(0, 30, 2), (0, 30, 2), (0, 30, 2)], num_blocks=64)
    tokens = {id: 0 for id in range(3)}
    for entry in log:
        for id, count in entry.scheduled:
            tokens[id] += count
    assert ended(log) == {0, 1, 2} and set(tokens.values()) == {31}


CROWD = [(id // 3, 5 + 3 * id % 11, 12) for id in range(9)]


@every()
def test_after_preemption_no_output_is_lost_or_made_twice(name):
    """B1, B2: prompt and outputs are computed again, and max_tokens counts outputs only."""
    log = serve(name, CROWD, num_blocks=12)
    lost = sum(len(entry.preempted) for entry in log)
    if name in RESERVES:
        assert lost == 0  # KV for the whole output is owned from the start
    else:
        assert lost > 0
    made = outputs(log, {id: prompt for id, (_, prompt, _) in enumerate(CROWD)})
    assert made == dict.fromkeys(range(len(CROWD)), 12)


@every()
@pytest.mark.slow
def test_one_state_per_request_and_every_block_comes_back(name):
    """A8, A11, C10, C15: the invariants after every verb, with aborts, on too small a pool."""
    policy, limits, numbers = of(name, 12)
    requests = tuple(Request(id, *one) for id, one in enumerate(CROWD))
    log = run_on_host(
        policy, Workload(requests, ((4, 1), (6, 5))), limits, numbers,
        check=lambda state, plan: check(state, limits, plan),
    )
    assert ended(log) == set(range(len(CROWD))) - {1, 5}


@every()
@pytest.mark.parametrize("max_tokens", [0, 1000])
def test_no_number_of_tokens_or_an_absurd_one_is_what_fits(name, max_tokens):
    """E2, E3: the prompt is never cut, the output is."""
    log = serve(name, [(0, 6, max_tokens)], num_blocks=10)
    made = outputs(log, {0: 6})[0]
    # Nothing attends to the last token: most systems need no KV for it.
    assert made == 40 - 6 + (not BUILD[name]().traits.reserves_output) or made == 40 - 6


@every()
def test_memory_is_taken_as_tokens_come(name):
    """E5: a long answer that ends soon leaves room for others, unless reserving is the rule."""
    requests = [Request(0, 0, 4, 40, stop_after=3), Request(1, 0, 4, 40, stop_after=3)]
    policy, limits, numbers = of(name, 12)
    log = run(policy, Workload(tuple(requests)), limits, numbers)
    beside = any({0, 1} <= set(dict(entry.scheduled)) for entry in log)
    if name in RESERVES:
        assert not beside
    elif name == "sglang":
        pytest.skip("it holds a share of what requests may still make back: its ratio")
    else:
        assert beside
