"""Several iterations in one dispatch: the decisions and tokens of one at a time."""

import pytest

from cbjax import policies
from cbjax.core.ladder import ladder
from cbjax.engine import Engine
from cbjax.metrics import Recorder
from cbjax.models import load_model
from cbjax.workload import Arrivals, Workload, WorkloadRequest
from tests.engine.serving import mixed_requests

SEATS, LENGTH, TOKENS = 4, 64, 32
# Few, because each is compiled; two for decodes, which a dispatch must not mix.
RUNGS = ladder(TOKENS, SEATS, decode=[2, SEATS], mixed=[])


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture(scope="module")
def requests(model):
    return mixed_requests(12, model.tokenizer.vocab_size, longest_prompt=24, most_output=24, seed=3)


def engine_for(model, policy, megastep, positions=1024, **options):
    return Engine(
        model, policy=policy, block_size=4, num_blocks=positions // 4, max_length=LENGTH,
        iteration_tokens=TOKENS, ladder=RUNGS, megastep=megastep, **options,
    )


def serve(engine, requests):
    """Tokens by request, the decisions in words, and calls of the device."""
    engine.compile()
    tokens = {}
    for index, ask in enumerate(requests):
        tokens[engine.submit(ask.prompt, request_id=index, **ask.settings)] = []
    decisions, moments = [], set()
    while engine.alive:
        turn, outputs = engine.turn()
        plan = turn.step.plan
        decisions.append(
            (
                turn.step.ids(plan.admitted), turn.step.ids(plan.preempted), plan.grants.tolist(),
                int(plan.free_blocks), int(plan.num_waiting), str(turn.step.rung),
            )
        )
        moments.add(turn.step.told_s)
        for output in outputs:
            tokens[output.request_id] += output.token_ids
    assert engine.compilations_since_start == 0
    return tokens, decisions, len(moments)


POLICIES = {
    "vllm": lambda: policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS),
    "static": lambda: policies.static(SEATS, "ragged"),
    "sglang": lambda: policies.sglang(max_running_requests=SEATS, chunked_prefill_size=16),
    "transformers ahead": lambda: policies.transformers(
        max_batch_tokens=TOKENS, max_requests_per_batch=SEATS, use_async_batching=True
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "vllm",
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted({*POLICIES} - {"vllm"})),
    ],
)
def test_decisions_and_tokens_are_those_of_one_at_a_time(model, requests, name):
    single = serve(engine_for(model, POLICIES[name](), 1), requests)
    many = serve(engine_for(model, POLICIES[name](), 8), requests)
    assert many[0] == single[0]
    assert many[1] == single[1]
    assert many[2] < 0.7 * single[2]


def test_preemption_within_a_dispatch(model):
    requests = mixed_requests(24, model.tokenizer.vocab_size, longest_prompt=32, most_output=30,
                              seed=5)
    policy = policies.vllm(
        max_num_batched_tokens=TOKENS, max_num_seqs=SEATS, scheduler_reserve_full_isl=False
    )
    single = serve(engine_for(model, policy, 1, positions=64), requests)
    many = serve(engine_for(model, policy, 8, positions=64), requests)
    assert sum(len(preempted) for _, preempted, *_ in single[1]) > 3
    assert many[:2] == single[:2]


def test_queued_requests_enter_within_a_dispatch(model):
    """One token each of prompt and a few of output: a seat is refilled on the device."""
    engine = engine_for(model, policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS), 16)
    engine.compile()
    for index in range(3 * SEATS):
        engine.submit((5 + index,), max_tokens=2 + index % SEATS, ignore_eos=True)
    entered = {}
    while engine.alive:
        turn, _ = engine.turn()
        if turn.step.plan.admitted.any():
            entered.setdefault(turn.step.told_s, []).append(len(entered))
    # A dispatch tells all of its iterations at one moment.
    assert max(map(len, entered.values())) > 1


def test_a_stop_string_is_looked_at_every_token(model):
    engine = engine_for(model, policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS), 8)
    engine.compile()
    engine.submit((5, 6), max_tokens=12, ignore_eos=True, stop=("never to be found",))
    engine.submit((7, 8), max_tokens=12, ignore_eos=True)
    moments = []
    while engine.alive:
        moments.append(engine.turn()[0].step.told_s)
    assert len(set(moments)) == len(moments)


def test_an_abort_between_two_tokens_of_a_dispatch_stands(model):
    engine = engine_for(model, policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS), 8)
    engine.compile()
    gone = engine.submit((5, 6), max_tokens=20, ignore_eos=True)
    stays = engine.submit((7, 8), max_tokens=20, ignore_eos=True)
    heard = {gone: 0, stays: 0}
    while engine.alive:
        for output in engine.step():
            heard[output.request_id] += len(output.token_ids)
        if heard[gone] == 4:
            engine.abort(gone)
    assert heard == {gone: 4, stays: 20}
    engine.generate([[5, 6]], max_tokens=3)
    assert int(engine.scheduler.state.blocks.free) == engine.num_blocks


def test_tokens_are_told_when_the_dispatch_ends_and_newcomers_are_waited_for(model):
    """While arrivals are expected and a seat is free, every iteration is told by itself."""
    closed = Workload(
        tuple(
            WorkloadRequest(
                index, "", 0, prompt_tokens=2, prompt=(5 + index, 6), max_tokens=17, seed=index,
                ignore_eos=True, scheduled_arrival_s=0.0,
            )
            for index in range(SEATS)
        ),
        arrivals=Arrivals("all_at_once"), seed=0,
    )
    engine = engine_for(model, policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS), 8)
    recorder = Recorder()
    engine.serve(closed, recorder)
    tables = recorder.tables()
    times = tables.requests["token_times_s"].to_list()
    assert len(tables.iterations) == 17
    # The prompts by themselves, then 16 tokens in two dispatches.
    assert [len(set(one)) for one in times] == [3] * SEATS
    ends = (tables.iterations["start_s"] + tables.iterations["duration_s"]).to_list()
    assert times[0][-1] >= ends[-1] - 1e-9 and times[0][1] == pytest.approx(ends[8])
    engine.scheduler.expects_arrivals = True
    engine.submit((9,), max_tokens=5, ignore_eos=True)
    moments = []
    while engine.alive:
        moments.append(engine.turn()[0].step.told_s)
    assert len(set(moments)) == len(moments) >= 5


def test_a_megastep_of_nothing_is_refused(model):
    with pytest.raises(ValueError, match="megastep = 0"):
        engine_for(model, policies.vllm(max_num_batched_tokens=TOKENS, max_num_seqs=SEATS), 0)
