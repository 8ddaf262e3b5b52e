"""An oracle stepped beside its array policy: workloads to draw, and the comparison."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hypothesis import strategies as st

from cbjax import policies
from cbjax.core.limits import Limits, system
from cbjax.core.log import IterationRecord
from cbjax.core.policy import Policy
from cbjax.parity.driver import run
from cbjax.parity.workload import Request, Workload
from tests.policies.oracles import (
    llama_cpp,
    sarathi,
    sglang,
    sglang_texts,
    tensorrt_llm,
    tgi,
    tgi_cache,
    transformers,
    triton,
    vllm_v0,
)
from tests.policies.oracles.orca import Orca
from tests.policies.oracles.static import Static
from tests.policies.oracles.vllm import Vllm, Vllm011

# Every random workload is padded to these, so that a policy compiles once.
LIMITS = Limits(
    seats=6, window=3, tokens=64, blocks=64, blocks_per_sequence=48, inbox=20, context=0
)
MAX_LENGTH = 48
# The same with token ids, for policies that share prefixes.
SHARED = replace(LIMITS, context=MAX_LENGTH, cached_tokens=128)
ORACLES = {
    "vllm": Vllm, "vllm_0_11": Vllm011, "orca": Orca, "static": Static, "sarathi": sarathi.Sarathi,
    "sglang": sglang.Sglang, "tensorrt_llm": tensorrt_llm.TensorrtLlm,
    "vllm_v0": vllm_v0.VllmV0,
    "triton": triton.Triton,
    "transformers": partial(transformers.Transformers, seats=LIMITS.seats),
    "tgi": tgi_cache.oracle,
    "llama_cpp": llama_cpp.LlamaCpp, "ollama": llama_cpp.ollama,
}


@dataclass(frozen=True)
class Case:
    """A policy by name, its knobs, the numbers of its system, and what it serves."""

    name: str
    knobs: dict[str, Any]
    block_size: int
    num_blocks: int
    max_length: int
    workload: Workload
    swap_blocks: int = 0

    def policy(self) -> Policy:
        return policies.get(self.name)(**self.knobs)

    @property
    def limits(self) -> Limits:
        return SHARED if self.policy().traits.shares else LIMITS

    def system(self):
        return system(
            self.limits, block_size=self.block_size, num_blocks=self.num_blocks,
            max_length=self.max_length, swap_blocks=self.swap_blocks,
        )


def array_log(case: Case, policy: Policy | None = None) -> list[IterationRecord]:
    """The decisions of the array policy, or of `policy` in its place."""
    return run(policy or case.policy(), case.workload, case.limits, case.system())


def oracle_log(case: Case, iterations: int = 5000) -> list[dict[str, Any]]:
    """The decisions of the oracle; requests arrive one by one, whatever rows there are."""
    oracle = ORACLES[case.name](
        block_size=case.block_size, num_blocks=case.num_blocks, max_length=case.max_length,
        iteration_tokens=case.limits.tokens, swap_blocks=case.swap_blocks, **case.knobs,
    )
    requests = list(case.workload.requests)
    stop_after = {request.id: request.stop_after for request in requests}
    log: list[dict[str, Any]] = []
    to_come = requests[:]
    for iteration in range(iterations):
        if not (to_come or oracle.busy):
            return log
        named = {id for when, id in case.workload.aborts if when == iteration}
        # An arrival and its abort in one iteration: it never gets in.
        aborted = {id for id in named if oracle.abort(id)}
        refused = []
        while to_come and to_come[0].arrival <= iteration:
            request = to_come.pop(0)
            if request.id in named:
                aborted.add(request.id)
                continue
            # Most systems know no deadlines and no tokens.
            more: dict[str, Any] = {}
            if request.deadline is not None:
                more |= dict(deadline=request.deadline)
            if request.token_ids:
                more |= dict(token_ids=request.token_ids)
            word = oracle.arrive(
                request.id, request.prompt, request.max_tokens, request.priority, **more
            )
            if word:
                refused.append((request.id, word))
        step = oracle.schedule()
        refused += step.get("refused", ())
        step |= dict(refused=tuple(sorted(refused)), aborted=tuple(sorted(aborted)))
        log.append(step | oracle.finish(stop_after))
    raise AssertionError(f"the oracle is not done after {iterations} iterations")


def mismatch(log: list[IterationRecord], oracle: list[dict[str, Any]]) -> str | None:
    """The first decision in which the two differ, in words."""
    for ours, theirs in zip(log, oracle, strict=False):
        for name, expected in theirs.items():
            value = getattr(ours, name)
            if name == "refused":
                value = tuple(sorted(value))
            if name == "queue":
                # Behind the window only the number is known.
                if len(value) + ours.backlog != len(expected):
                    return f"iteration {ours.iteration} queue: {value} instead of {expected}"
                expected = expected[: len(value)]
            if name == "limited_by" and value == "rows":
                # Everybody in the window got in: what stops those behind it is not seen.
                continue
            if value != expected:
                return f"iteration {ours.iteration} {name}: {value} instead of {expected}"
    if len(log) != len(oracle):
        return f"{len(log)} iterations instead of {len(oracle)}"
    return None


@st.composite
def workloads(draw, block_size: int, max_length: int, most: int = 20) -> Workload:
    """Up to 20 requests, more than there are rows; a few are absurd, a few are aborted."""
    count = draw(st.one_of(st.integers(1, 8), st.integers(min(12, most), most)))
    absurd = [0, max_length - 1, max_length, max_length + 5]
    prompts = st.one_of(
        st.integers(1, 8), st.integers(1, 8), st.integers(1, 30),
        st.integers(1, 4).map(lambda blocks: blocks * block_size),
        st.sampled_from([*range(1, 16), *absurd]),
    )
    outputs = st.one_of(st.integers(6, 24), st.sampled_from([0, 1, 1, 5, 200]))
    stops = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 5])
    gaps = st.sampled_from([0, 0, 0, 0, 0, 1, 3])
    drawn = draw(
        st.lists(st.tuples(gaps, prompts, outputs, stops), min_size=count, max_size=count)
    )
    requests, now = [], 0
    for id, (gap, prompt, max_tokens, stop_after) in enumerate(drawn):
        now += gap
        requests.append(Request(id, now, prompt, max_tokens, stop_after, draw(st.integers(0, 2))))
    # Ids beyond the last request are unknown; an id may be named twice.
    aborts = draw(
        st.lists(
            st.tuples(st.integers(0, now + 15), st.integers(0, count)),
            max_size=draw(st.sampled_from([0, 4])),
        )
    )
    return Workload(tuple(requests), tuple(aborts))


@st.composite
def systems(draw) -> tuple[int, int, int]:
    """Block size, number of blocks, longest sequence: pools of one to four long sequences."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    max_length = draw(st.sampled_from([24, MAX_LENGTH]))
    tokens = draw(st.one_of(st.integers(16, 40), st.integers(16, 40), st.integers(40, 96)))
    num_blocks = max(min(tokens // block_size, LIMITS.blocks), 1)
    return block_size, num_blocks, max_length


@st.composite
def vllm_cases(draw) -> Case:
    """A vllm system with a workload."""
    block_size, num_blocks, max_length = draw(systems())
    chunks = draw(st.sampled_from([True, True, True, False]))
    seats = draw(st.sampled_from([1, 2, 3, 4, 4, 5, 5, 6, 6]))
    policy = draw(st.sampled_from(["fcfs", "priority"]))
    least = seats
    if not chunks:
        # Several whole prompts must compete for one budget, and not for blocks.
        num_blocks = min(2 * num_blocks, LIMITS.blocks)
        max_length = draw(st.sampled_from([24, 24, MAX_LENGTH]))
        least, seats = max_length, max(seats, 4)
    budget = draw(st.one_of(st.integers(least, min(least + 10, 64)), st.integers(least, 64)))
    knobs = dict(
        max_num_batched_tokens=budget, max_num_seqs=seats, enable_chunked_prefill=chunks,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 7, 16])),
        policy=policy, scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.2, 0.5])),
    )
    # A policy that sorts is exact while nobody waits behind the window.
    most = LIMITS.rows if policy == "priority" else 20
    workload = draw(workloads(block_size, max_length, most))
    return Case("vllm", knobs, block_size, num_blocks, max_length, workload)


@st.composite
def vllm_0_11_cases(draw) -> Case:
    """The same systems under the rules of release 0.11."""
    case = draw(vllm_cases())
    knobs = {
        name: value for name, value in case.knobs.items()
        if name not in ("scheduler_reserve_full_isl", "watermark")
    }
    workload = case.workload
    if not knobs["enable_chunked_prefill"]:
        # Who is passed by makes room for those behind the window, whom the policy does not see.
        first = workload.requests[: LIMITS.rows]
        aborts = tuple((when, id) for when, id in workload.aborts if id < len(first))
        workload = Workload(first, aborts)
    return replace(case, name="vllm_0_11", knobs=knobs, workload=workload)


RESERVATIONS = st.sampled_from(["oracle", "pow2", "max"])


@st.composite
def orca_cases(draw) -> Case:
    """An Orca system with a workload."""
    numbers = draw(systems())
    knobs = dict(max_bs=draw(st.integers(1, LIMITS.seats)), reservation=draw(RESERVATIONS))
    return Case("orca", knobs, *numbers, draw(workloads(numbers[0], numbers[2])))


@st.composite
def static_cases(draw) -> Case:
    """A static batching system with a workload."""
    numbers = draw(systems())
    knobs = dict(
        max_batch_size=draw(st.integers(1, LIMITS.seats)),
        padding=draw(st.sampled_from(["padded", "ragged"])), reservation=draw(RESERVATIONS),
    )
    return Case("static", knobs, *numbers, draw(workloads(numbers[0], numbers[2])))


CASES = {
    "vllm": vllm_cases(), "vllm_0_11": vllm_0_11_cases(), "orca": orca_cases(),
    "static": static_cases(),
    "sarathi": sarathi.cases(),
    "sglang": sglang.cases(), "sglang_radix": sglang_texts.cases(),
    "tensorrt_llm": tensorrt_llm.cases(),
    "vllm_v0": vllm_v0.cases(),
    "triton": triton.cases(),
    "transformers": transformers.cases(),
    "tgi": tgi.cases(), "tgi_radix": tgi_cache.cases(),
    "llama_cpp": llama_cpp.cases(), "ollama": llama_cpp.ollama_cases(),
    "llama_cpp remembering": llama_cpp.cached_cases(llama_cpp.cases()),
    "ollama remembering": llama_cpp.cached_cases(llama_cpp.ollama_cases()),
}
