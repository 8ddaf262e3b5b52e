"""TGI's router: scenarios checked by hand, its knobs, its oracle beside it."""

import pytest

from cbjax import policies
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import Case, array_log, mismatch, oracle_log
from tests.policies.test_oracles import compare, describe

V2 = dict(version="v2", max_batch_prefill_tokens=48, max_batch_size=6)
V3 = dict(max_batch_prefill_tokens=16, max_batch_size=6)


def serve(requests, num_blocks=32, **knobs):
    """The array policy's log on blocks of 4, after checking that the oracle says the same."""
    workload = Workload(tuple(Request(id, *one) for id, one in enumerate(requests)))
    case = Case("tgi", knobs, 4, num_blocks, 48, workload)
    log = array_log(case)
    assert mismatch(log, oracle_log(case)) is None
    return log


@pytest.mark.parametrize("examples", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_array_policy_decides_as_its_oracle(examples, report_line):
    seen = compare("tgi", examples)
    report_line(describe("tgi", seen))
    for what in ("refused", "aborted", "stopped"):
        assert seen[what] >= examples / 20, what
    assert not seen["preempted"]


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_with_prefix_caching_too(examples, report_line):
    seen = compare("tgi_radix", examples)
    report_line(describe("tgi with prefix caching", seen))
    assert seen["hits"] >= examples / 3
    for what in ("refused", "aborted", "stopped"):
        assert seen[what] >= examples / 20, what


def test_a_prefill_interrupts_the_decodes_and_a_decode_follows_it():
    log = serve([(0, 6, 6), (1, 6, 6), (2, 6, 6)], **V2)
    # One waits beside one that runs: enough for a share of 0.3. Request 2 lets a decode pass first.
    assert [entry.scheduled for entry in log[:4]] == [
        ((0, 6),), ((1, 6),), ((0, 1), (1, 1)), ((2, 6),),
    ]
    # 6 prompt tokens and 6 new ones: three blocks each are owned from the start.
    assert [entry.free_blocks for entry in log[:2]] == [29, 26]


def test_too_few_wait_until_the_decodes_were_many():
    """FAULTS A9: the wait is bounded, whatever the share."""
    log = serve([(0, 6, 9), (0, 6, 9), (1, 6, 3)], waiting_served_ratio=1.2, max_waiting_tokens=4,
                **V2)
    # 1 waits beside 2 and 2 are asked for; a prefill counts as the first of four.
    assert [entry.limited_by for entry in log[1:4]] == ["wait_timer"] * 3
    assert log[4].scheduled == ((2, 6),)
    assert log[5].scheduled == ((0, 1), (1, 1), (2, 1))


def test_chunks_mix_with_decodes_and_own_their_memory_from_the_start():
    log = serve([(0, 6, 4), (1, 30, 4)], **V3)
    # 16 tokens less one decode are 15, rounded up to whole blocks; then the rest of the prompt.
    assert log[1].scheduled == ((0, 1), (1, 16)) and log[2].scheduled == ((0, 1), (1, 14))
    # 30 + 4 tokens are 9 blocks, beside 3.
    assert log[1].free_blocks == log[2].free_blocks == 32 - 3 - 9


def with_texts(*requests):
    """(arrival, text, max_tokens) each, as requests of a workload."""
    return [(when, len(text), most, 0, 0, tuple(text)) for when, text, most in requests]


def test_a_prompt_is_found_once_its_request_has_ended():
    """FAULTS C5: nothing is found that was not computed, and no output ever is."""
    text = range(10)
    asked = with_texts((0, text, 6), (1, text, 6), (9, text, 6), (9, range(8), 2))
    log = serve(asked, **V3, prefix_caching=True)
    hits = {id: tokens for entry in log for id, tokens in entry.cached}
    # The second begins beside the first; later two whole blocks of four are found, but at least
    # one token is computed.
    assert hits == {0: 0, 1: 0, 2: 8, 3: 4}
    late = next(entry for entry in log if 2 in entry.new)
    assert dict(late.scheduled)[2] == 2 and dict(late.scheduled)[3] == 4
    # 10 + 6 tokens are 4 blocks, of which 2 are found; 8 + 2 are 3, of which 1 is found.
    assert late.free_blocks == 32 - 4 - 2


BURST = [(0, 5 + id, 6) for id in range(8)]


@pytest.mark.parametrize(
    ("base", "changed"),
    [
        (V2, dict(max_batch_total_tokens=60)),
        (V2, dict(max_batch_size=2)),
        (V2, dict(max_concurrent_requests=4)),
        (V2, dict(max_input_tokens=8)),
        (V2 | dict(max_input_tokens=16), dict(max_batch_prefill_tokens=16)),
        (V2, dict(waiting_served_ratio=1.2)),
        (V2 | dict(waiting_served_ratio=1.2), dict(max_waiting_tokens=3)),
        (V2, dict(default_generation_length=4)),
        (V2, dict(version="v3", prefill_chunking=False)),
        (V3, dict(max_batch_prefill_tokens=8)),
        (V3, dict(max_batch_prefill_tokens=48, prefill_chunking=False)),
        (V3, dict(max_batch_size=2)),
        (V3, dict(default_generation_length=4)),
        (V3, dict(prefix_caching=True)),
        (V3 | dict(max_batch_prefill_tokens=48, prefill_chunking=False), dict(prefix_caching=True)),
    ],
    ids=lambda knobs: "-".join(knobs),
)
def test_every_knob_changes_a_decision(base, changed):
    alike = with_texts(*((6 * id, range(9 + id), 6) for id in range(4)))
    if "prefix_caching" in changed:
        before, after = serve([one[:3] for one in alike], **base), serve(alike, **base, **changed)
    else:
        before, after = (serve(BURST, 20, **knobs) for knobs in (base, base | changed))
    assert [entry.scheduled for entry in before] != [entry.scheduled for entry in after]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        (dict(version="v4"), "version = 'v4'"),
        (dict(version="v2", prefix_caching=True), "prefix_caching = True: v2 has none"),
        (dict(max_batch_size=0), "max_batch_size = 0"),
        (dict(waiting_served_ratio=-1), "waiting_served_ratio = -1"),
        (dict(max_batch_total_tokens=64), "max_batch_total_tokens = 64.*number of KV blocks"),
    ],
)
def test_impossible_values_are_named(knobs, words):
    with pytest.raises(ValueError, match=words):
        policies.tgi(**knobs)
