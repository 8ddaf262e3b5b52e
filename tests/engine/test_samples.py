"""Samples of one prompt share its KV: the same decisions and tokens, less work and memory."""

import numpy as np
import pytest

from cbjax import policies
from cbjax.engine import Engine, copying
from cbjax.engine.sampling import sample_seed
from cbjax.models import load_model
from tests.engine.serving import mixed_requests, small_ladder

SEATS, LENGTH, TOKENS, SIZE = 8, 128, 256, 8
AMPLE, SCARCE = 128, 12  # blocks of the pool; the scarce one hardly holds the longest request
PROMPT = tuple(range(3, 40))  # four blocks and five tokens
SLOW = pytest.mark.slow
DRAWN = dict(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def vllm(budget=64, **knobs):
    return policies.vllm(max_num_batched_tokens=budget, max_num_seqs=SEATS, **knobs)


def engine_for(model, policy, blocks=AMPLE, share=True, swap=0):
    return Engine(
        model, policy=policy, block_size=SIZE, num_blocks=blocks, swap_blocks=swap,
        max_length=LENGTH, iteration_tokens=TOKENS, ladder=small_ladder(TOKENS, SEATS),
        debug=True, share_samples=share,
    )


class Served:
    """Serves samples to the end and notes what was decided, computed and held."""

    def __init__(self, engine, asked):
        self.tokens, self.decisions = {}, []
        self.prefilled = self.taken = self.most_used = self.preemptions = 0
        for group, (prompt, settings, n) in enumerate(asked):
            for sample in range(n):
                seed = sample_seed(settings.get("seed", 0), sample)
                one = engine.submit(prompt, group=group, **(settings | dict(seed=seed)))
                self.tokens[one] = ()
        while engine.alive or engine.scheduler.alive:
            self.note(*engine.turn())
        blocks = engine.scheduler.state.blocks
        assert int(blocks.free) == engine.num_blocks and not np.asarray(blocks.refs).any()

    def note(self, turn, outputs):
        plan, step = turn.step.plan, turn.step
        row = plan.running.clip(0)
        granted = plan.grants + (0 if plan.taken is None else plan.taken.tokens[row])
        self.decisions.append((
            plan.requests[row].tolist(), np.where(plan.running < 0, 0, granted).tolist(),
            step.ids(plan.admitted), step.ids(plan.preempted), step.refused,
        ))
        self.prefilled += int(plan.prefill_tokens)
        self.taken += 0 if plan.taken is None else int(plan.taken.tokens.sum())
        self.preemptions += int(plan.preempted.sum())
        self.most_used = max(self.most_used, step.num_blocks - int(plan.free_blocks))
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids


POLICIES = {
    "vllm": (vllm(), AMPLE, 0),
    "vllm, scarce": (vllm(scheduler_reserve_full_isl=False), SCARCE, 0),
    "static": (policies.static(max_batch_size=SEATS), AMPLE, 0),
    "vllm v0, swapping": (
        policies.vllm_v0(
            max_num_batched_tokens=TOKENS, max_num_seqs=SEATS, preemption_mode="swap"
        ), SCARCE, 64,
    ),
    "vllm, prefix caching": (vllm(enable_prefix_caching=True), SCARCE, 0),
    "vllm, priority": (vllm(policy="priority", scheduler_reserve_full_isl=False), SCARCE, 0),
    "orca": (policies.orca(max_bs=SEATS), AMPLE, 0),
    "sglang": (
        policies.sglang(max_running_requests=SEATS, chunked_prefill_size=24), SCARCE, 0,
    ),
    "sglang, radix": (
        policies.sglang(
            max_running_requests=SEATS, chunked_prefill_size=24, disable_radix_cache=False
        ), SCARCE, 0,
    ),
    "tensorrt_llm": (
        policies.tensorrt_llm(
            max_batch_size=SEATS, max_num_tokens=TOKENS,
            capacity_scheduler_policy="MAX_UTILIZATION",
        ), SCARCE, 0,
    ),
    "tgi": (
        policies.tgi(max_batch_size=SEATS, max_batch_prefill_tokens=TOKENS), AMPLE, 0,
    ),
    "sarathi": (policies.sarathi(chunk_size=16, max_num_seqs=SEATS), SCARCE, 0),
    "transformers, sharing, ahead": (
        policies.transformers(
            max_batch_tokens=64, max_requests_per_batch=SEATS, allow_block_sharing=True,
            use_async_batching=True,
        ), SCARCE, 0,
    ),
    "llama_cpp": (policies.llama_cpp(n_parallel=4, n_batch=64, kv_unified=True), AMPLE, 0),
}
QUICK = ("vllm, scarce",)
PREEMPT = ("vllm, scarce", "vllm, priority", "sglang", "tensorrt_llm", "sarathi")


@pytest.fixture(scope="module")
def asked(model):
    """Requests for one to three samples each."""
    requests = mixed_requests(
        7, model.tokenizer.vocab_size, longest_prompt=72, most_output=12, seed=11
    )
    return [(one.prompt, one.settings, 1 + index % 3) for index, one in enumerate(requests)]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in POLICIES]
)
def test_decisions_and_tokens_are_those_without_sharing(model, asked, name):
    """FAULTS B5 too: samples of one prompt are preempted, and nothing is lost."""
    policy, blocks, swap = POLICIES[name]
    apart = Served(engine_for(model, policy, blocks, share=False, swap=swap), asked)
    shared = Served(engine_for(model, policy, blocks, swap=swap), asked)
    assert shared.decisions == apart.decisions
    assert shared.tokens == apart.tokens
    assert shared.taken > 0 and shared.prefilled == apart.prefilled - shared.taken
    assert shared.preemptions == apart.preemptions
    if name in PREEMPT:
        assert shared.preemptions > 0


def test_samples_are_requests_with_those_seeds(model):
    engine = engine_for(model, vllm())
    answers = engine.generate([PROMPT, PROMPT[:20]], n=3, **DRAWN)
    greedy = engine.generate([PROMPT], n=3, max_tokens=8, ignore_eos=True)
    assert len({answer.token_ids for answer in greedy}) == 1
    assert engine.compilations_since_start == 0
    alone = engine_for(model, vllm(), share=False)
    for index, answer in enumerate(answers):
        prompt = PROMPT if index < 3 else PROMPT[:20]
        settings = DRAWN | dict(seed=sample_seed(5, index % 3))
        assert answer.token_ids == alone.generate([prompt], **settings)[0].token_ids
    assert len({answer.token_ids for answer in answers}) == 6
    with pytest.raises(ValueError, match="n = 0"):
        engine.generate([PROMPT], n=0)


def test_a_prompt_is_computed_once(model):
    """Behind a sample that has computed it the others compute one token of it each."""
    together = Served(engine_for(model, vllm(budget=256)), [(PROMPT, DRAWN, 4)])
    # Side by side they hold the four full blocks together and compute the five tokens behind.
    assert together.prefilled == len(PROMPT) + 3 * 5
    engine = engine_for(model, vllm(budget=40))
    behind = Served(engine, [(PROMPT, DRAWN, 2)])
    # Beside the first it was granted three tokens; behind it one of the other 34 is computed.
    assert behind.prefilled == len(PROMPT) + 3 + 1
    apart = Served(engine_for(model, vllm(budget=256), share=False), [(PROMPT, DRAWN, 4)])
    assert apart.prefilled == 4 * len(PROMPT)
    # Four full blocks of the prompt once, and the two behind them for each.
    assert (together.most_used, apart.most_used) == (4 + 4 * 2, 4 * 6)
    assert together.tokens == apart.tokens


def test_a_block_that_is_not_copied_is_noticed(model, monkeypatch):
    asked = [(PROMPT, DRAWN, 4)]
    right = Served(engine_for(model, vllm(budget=40), share=False), asked).tokens
    monkeypatch.setattr(copying, "copy_taken", lambda keys, values, *_: (keys, values))
    assert Served(engine_for(model, vllm(budget=40)), asked).tokens != right


def test_tokens_that_differ_are_not_taken(model):
    """The group alone does not make two prompts one: the first block is alike, the second not."""
    other = (*PROMPT[:11], 99, *PROMPT[12:])
    settings = dict(max_tokens=12, ignore_eos=True)
    right = engine_for(model, vllm()).generate([PROMPT, other], **settings)
    engine = engine_for(model, vllm(budget=256))
    tokens = {engine.submit(prompt, group=0, **settings): () for prompt in (PROMPT, other)}
    taken = 0
    while engine.alive:
        turn, outputs = engine.turn()
        taken += int(turn.step.plan.taken.tokens.sum())
        for output in outputs:
            tokens[output.request_id] += output.token_ids
    assert list(tokens.values()) == [answer.token_ids for answer in right]
    assert taken == SIZE


def test_an_abort_leaves_the_others_right(model):
    whole = Served(engine_for(model, vllm()), [(PROMPT, DRAWN, 4)]).tokens
    engine = engine_for(model, vllm())
    for sample in range(4):
        engine.submit(PROMPT, group=0, **(DRAWN | dict(seed=sample_seed(5, sample))))
    tokens = {one: () for one in range(4)}
    for iteration in range(40):
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
        if iteration == 4:  # the one that computed the prompt
            engine.abort(0)
    assert engine.alive == 0
    assert {one: tokens[one] for one in (1, 2, 3)} == {one: whole[one] for one in (1, 2, 3)}
    assert int(engine.scheduler.state.blocks.free) == AMPLE


def test_seeds_of_samples():
    assert sample_seed(7, 0) == 7
    seeds = {sample_seed(seed, sample) for seed in range(50) for sample in range(8)}
    assert len(seeds) == 400 and max(seeds) < 2**32
