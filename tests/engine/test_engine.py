"""The engine as a user meets it, on the tiny model."""

import pytest

from cbjax import policies
from cbjax.engine import Engine
from cbjax.metrics import Recorder
from cbjax.models import load_model
from cbjax.workload import Prompt, workload_from_prompts
from tests.engine.serving import small_ladder

LENGTH = 64


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


def new_engine(tiny):
    engine = Engine(
        tiny, policy=policies.vllm(max_num_batched_tokens=16, max_num_seqs=4), block_size=4,
        num_blocks=40, max_length=LENGTH, ladder=small_ladder(16, 4), debug=True,
    )
    engine.compile()
    return engine


@pytest.fixture(scope="module")
def shared(tiny):
    return new_engine(tiny)


@pytest.fixture
def engine(shared):
    """The shared engine, idle before and after each test and never compiling again."""
    assert shared.alive == 0
    yield shared
    for request_id in list(shared.requests):
        shared.abort(request_id)
    shared.step()
    assert int(shared.scheduler.state.blocks.free) == shared.num_blocks
    assert shared.compilations_since_start == 0


def run_out(engine, request_id):
    """Step until a request ends; all its outputs."""
    outputs = []
    while request_id in engine.requests:
        outputs += [one for one in engine.step() if one.request_id == request_id]
    return outputs


def test_text_chat_and_token_ids_are_prompts(engine, tiny):
    text, ids = engine.generate(["hello", tiny.tokenizer.encode("hello")], max_tokens=6)
    assert text.token_ids == ids.token_ids
    assert text.finish_reason == "length" and len(text.token_ids) == 6
    [chat] = engine.generate([[{"role": "user", "content": "hi"}]], max_tokens=2)
    assert chat.prompt_tokens == len(
        tiny.tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.generate("one text"), "list of prompts"),
        (lambda e: e.generate([[1, 10_000]]), "outside 0.."),
        (lambda e: e.generate([3.5 * 2]), "prompt of type"),
        (lambda e: e.generate(["x"], temperature=-1), "temperature"),
        (lambda e: e.generate(["x"], max_tokens=0), "max_tokens"),
    ],
)
def test_bad_requests_are_named(engine, call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(engine)


def test_requests_that_never_fit_are_refused_and_the_rest_goes_on(engine):
    """FAULTS A1, E3: one impossible request harms nobody."""
    empty, long, good = engine.generate([[], [1] * LENGTH, [1, 2, 3]], max_tokens=3)
    assert (empty.finish_reason, long.finish_reason) == ("refused", "refused")
    assert "empty" in empty.error and "max_length" in long.error
    assert good.finish_reason == "length" and len(good.token_ids) == 3


def test_absent_and_too_large_max_tokens_are_clamped(engine):
    """FAULTS E2, E3."""
    absent, large = engine.generate([[1] * 60, [1] * 60], ignore_eos=True), engine.generate(
        [[1] * 60], max_tokens=1000, ignore_eos=True
    )
    assert [len(one.token_ids) for one in absent + large] == [4, 4, 4]


def test_stream_is_the_completion_in_pieces(engine):
    settings = dict(max_tokens=20, temperature=0.8, seed=5)
    [whole] = engine.generate(["tell me"], **settings)
    assert "".join(engine.stream("tell me", **settings)) == whole.text


def test_nothing_compiles_once_the_clock_runs(engine):
    """FAULTS J8: the first sampled, stopped, aborted or refused request meets warm programs."""
    before = engine.compilations_since_start
    engine.generate(["a"] * 5, max_tokens=3)
    engine.generate(["b"], max_tokens=3, temperature=1.0, top_k=3, top_p=0.9, seed=1)
    engine.generate(["c", []], max_tokens=3, min_tokens=2, stop_token_ids=(5,), stop="x")
    victim = engine.submit([7] * 40, max_tokens=4)
    engine.step()
    engine.abort(victim)
    engine.step()
    assert engine.compilations_since_start == before == 0


def test_a_stream_that_is_left_early_leaves_nothing_behind(engine):
    pieces = engine.stream("tell me", max_tokens=30, ignore_eos=True)
    next(pieces)
    pieces.close()
    assert engine.alive == 0


def test_a_refused_stream_says_why(engine):
    with pytest.raises(ValueError, match="max_length"):
        list(engine.stream([1] * LENGTH))


def test_stop_ids_end_a_request_and_stay_out_of_the_text(engine, tiny):
    """FAULTS F14: any of several ids ends it; ignore_eos does not undo the user's own."""
    [free] = engine.generate(["abc"], max_tokens=12, ignore_eos=True)
    third = free.token_ids[2]
    assert third not in free.token_ids[:2]
    settings = dict(max_tokens=12, ignore_eos=True, stop_token_ids=(third, free.token_ids[5]))
    [stopped] = engine.generate(["abc"], **settings)
    assert stopped.token_ids == free.token_ids[:3] and stopped.finish_reason == "stop"
    assert stopped.text == tiny.tokenizer.decode(free.token_ids[:2])
    [later] = engine.generate(["abc"], min_tokens=4, **settings)
    assert len(later.token_ids) >= 4


def test_nothing_is_shown_after_a_stop_string(engine):
    """FAULTS G2."""
    [free] = engine.generate(["abc"], max_tokens=16, ignore_eos=True)
    stop = free.text[3:5]
    [stopped] = engine.generate(["abc"], max_tokens=16, ignore_eos=True, stop=stop)
    assert stopped.finish_reason == "stop"
    assert stopped.text == free.text[: free.text.index(stop)]
    assert len(stopped.token_ids) < len(free.token_ids)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_in_any_phase_returns_everything_once(engine, steps):
    """FAULTS D1, D3: before the first step, mid-prefill, decoding; mates are unaffected."""
    [expected] = engine.generate(["mate"], max_tokens=8, ignore_eos=True)
    mate = engine.submit("mate", max_tokens=8, ignore_eos=True)
    victim = engine.submit([7] * 40, max_tokens=10, ignore_eos=True)
    before = [output for _ in range(steps) for output in engine.step()]
    last = engine.abort(victim)
    assert last.finish_reason == "abort"
    assert engine.abort(victim) is None and engine.abort(12345) is None
    after = run_out(engine, mate)
    tokens = [t for one in before + after if one.request_id == mate for t in one.token_ids]
    assert tuple(tokens) == expected.token_ids
    assert not [one for one in after if one.request_id == victim]


def test_delivery_at_the_end_of_the_batch(tiny):
    engine = Engine(
        tiny, policy=policies.static(2, "ragged", delivery="at_end"), block_size=4, num_blocks=40,
        max_length=LENGTH, ladder=small_ladder(LENGTH, 2),
    )
    short = engine.submit([1, 2], max_tokens=2, ignore_eos=True)
    long = engine.submit([3, 4], max_tokens=5, ignore_eos=True)
    steps = [engine.step() for _ in range(5)]
    assert [len(outputs) for outputs in steps[:4]] == [0, 0, 0, 0]
    assert {one.request_id for one in steps[4]} == {short, long}
    assert engine.alive == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(block_size=0), "block_size"),
        (dict(max_length=100_000), "max_length"),
        (dict(kv_memory_fraction=1.5), "kv_memory_fraction"),
        (dict(num_blocks=4, ladder=small_ladder(2, 2)), "rung"),
        (dict(num_blocks=4, iteration_tokens=2), "iteration_tokens"),
    ],
)
def test_impossible_engines_are_named(tiny, options, words):
    with pytest.raises(ValueError, match=words):
        Engine(tiny, policy=policies.vllm(max_num_batched_tokens=8, max_num_seqs=4), **options)


def test_tokens_are_counted_as_they_come_whatever_text_they_make(tiny):
    """FAULTS I3: not by tokenising the text again. I7: the first one counts if it shows nothing."""
    recorder = Recorder()
    prompts = [Prompt(f"question {number}") for number in range(8)]
    done = new_engine(tiny).serve(workload_from_prompts(prompts, max_tokens=12), recorder)
    rows = recorder.tables().requests
    assert rows["output_tokens"].to_list() == [len(one.token_ids) for one in done]
    assert any(len(tiny.tokenizer.encode(one.text)) != len(one.token_ids) for one in done)
    # Half a character is held back until the next token; it was a token all the same.
    silent = [place for place, one in enumerate(done)
              if "\ufffd" in tiny.tokenizer.decode(one.token_ids[:1])]
    assert silent
    for row in rows.select("first_token_s", "token_times_s", "output_tokens").iter_rows():
        assert row[0] == row[1][0] and len(row[1]) == row[2]
