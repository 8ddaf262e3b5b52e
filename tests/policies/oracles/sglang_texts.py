"""Workloads for SGLang's radix cache: prompts that begin like others, or go on where they ended."""

from dataclasses import replace

from hypothesis import strategies as st

from cbjax.parity.workload import Workload, output_token
from tests.policies.oracles import sglang


@st.composite
def cases(draw):
    """An SGLang system with the radix cache, all orders, and a workload of related texts."""
    from tests.policies import beside

    case = draw(sglang.cases())
    knobs = dict(case.knobs) | dict(disable_radix_cache=False)
    if not knobs["enable_priority_scheduling"]:
        orders = ["lpm", "lpm", "dfs-weight", "dfs-weight", "fcfs"]
        knobs["schedule_policy"] = draw(st.sampled_from(orders))
    workload = draw(related(case.workload, case.max_length))
    return beside.Case(
        "sglang", knobs, case.block_size, case.num_blocks, case.max_length, workload
    )


@st.composite
def related(draw, workload: Workload, max_length: int) -> Workload:
    """The same workload with token ids: of a request's own, or an earlier one's text at first."""
    requests, texts = [], []
    # Long prompts that begin alike step back for one another.
    long = draw(st.sampled_from([False, False, True])) and max_length > 40
    for request in workload.requests:
        id = request.id
        if long and 0 < request.prompt < max_length:
            request = replace(request, prompt=draw(st.sampled_from([request.prompt, 33, 36, 40])))
        source = draw(st.integers(max(-2, id - 6), id - 1)) if id else -1
        begins = texts[source] if source >= 0 else []
        cut = draw(st.sampled_from([request.prompt, request.prompt, request.prompt // 2, 33]))
        own = [1000 * (id + 1) + place for place in range(request.prompt)]
        ids = (begins[:cut] + own)[: request.prompt]
        requests.append(replace(request, token_ids=tuple(ids)))
        texts.append(ids + [output_token(id, place) for place in range(max_length)])
    # Of two that are aborted at once nobody says which is used later.
    aborts = tuple(dict(workload.aborts).items())
    return replace(workload, requests=tuple(requests), aborts=aborts)
