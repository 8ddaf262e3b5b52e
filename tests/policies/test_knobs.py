"""Every knob changes a decision, and a value that cannot be is refused with its name."""

import pytest

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.workload import Request, Workload
from tests.policies.beside import LIMITS, Case, array_log, mismatch, oracle_log

BURST = Workload(tuple(Request(id, 0, 5 + id, 6) for id in range(8)))
DEFAULTS = {
    "vllm": dict(max_num_batched_tokens=48, max_num_seqs=4),
    "vllm_0_11": dict(max_num_batched_tokens=48, max_num_seqs=4),
    "orca": dict(max_bs=4),
    "static": dict(max_batch_size=4, padding="ragged"),
}


def log_of(name, knobs, num_blocks=10, workload=BURST):
    one = Case(name, DEFAULTS[name] | knobs, 4, num_blocks, 48, workload)
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return [(entry.scheduled, entry.extra_tokens) for entry in log]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("vllm", dict(max_num_batched_tokens=9)),
        ("vllm", dict(max_num_seqs=2)),
        ("vllm", dict(long_prefill_token_threshold=3)),
        ("vllm", dict(watermark=0.4)),
        ("vllm_0_11", dict(max_num_batched_tokens=9)),
        ("vllm_0_11", dict(max_num_seqs=2)),
        ("vllm_0_11", dict(long_prefill_token_threshold=3)),
        ("orca", dict(max_bs=2)),
        ("static", dict(max_batch_size=2)),
        ("static", dict(padding="padded")),
        ("orca", dict(reservation="pow2")),
        ("orca", dict(reservation="max")),
        ("static", dict(reservation="pow2")),
        ("static", dict(reservation="max")),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_knob_changes_a_decision(name, changed):
    assert log_of(name, {}) != log_of(name, changed)


def test_priority_changes_a_decision():
    """A lower number is more urgent: it goes first, and the largest makes room."""
    workload = Workload(
        (Request(0, 0, 8, 9, priority=1), Request(1, 0, 8, 9), Request(2, 0, 8, 9, priority=2))
    )
    seats = dict(max_num_seqs=2)
    fcfs = log_of("vllm", seats, 5, workload)
    urgent = log_of("vllm", seats | dict(policy="priority"), 5, workload)
    assert fcfs[0][0] == ((0, 8), (1, 8))
    assert urgent[0][0] == ((1, 8), (0, 8))
    assert fcfs != urgent


def test_admission_by_the_first_chunk_can_be_had_with_its_thrashing():
    """The long prompt fills what it freed and loses it again, while the other one decodes."""
    workload = Workload((Request(0, 0, 8, 28), Request(1, 1, 32, 2)))

    def lost(whole):
        knobs = dict(max_num_batched_tokens=9, max_num_seqs=4, scheduler_reserve_full_isl=whole)
        log = array_log(Case("vllm", knobs, 4, 9, 48, workload))
        assert {id for entry in log for id in entry.finished} == {0, 1}
        return sum(len(entry.preempted) for entry in log)

    assert lost(True) == 0 and lost(False) >= 4


@pytest.mark.parametrize(
    ("moment", "found"),
    [("schedule", (8, 8, 8)), ("compute", (4, 8, 8)), ("prefill_done", (0, 8, 8)),
     ("finish", (0, 0, 8))],
)
def test_a_prefix_is_found_from_its_moment_on(moment, found):
    """Ten tokens, four in each of iterations 0 to 2; the request ends in iteration 4."""
    text = tuple(range(10))
    requests = [Request(0, 0, 1, 20, token_ids=(99,))] + [
        Request(id, when, 10, 3, token_ids=text) for id, when in enumerate((0, 1, 3, 6), 1)
    ]
    knobs = DEFAULTS["vllm"] | dict(
        enable_prefix_caching=True, prefix_visible_at=moment, long_prefill_token_threshold=4,
        max_num_seqs=6,
    )
    log = array_log(Case("vllm", knobs, 4, 30, 48, Workload(tuple(requests))))
    hits = {id: tokens for entry in log for id, tokens in entry.cached}
    assert tuple(hits[id] for id in (2, 3, 4)) == found


def test_release_0_11_lets_a_prompt_in_by_its_first_chunk():
    """What it leaves free is too little for the rest, so the last one in makes room (#25538)."""
    workload = Workload((Request(0, 0, 12, 3), Request(1, 0, 30, 3)))
    knobs = dict(long_prefill_token_threshold=8)
    assert log_of("vllm_0_11", knobs, 9, workload)[0][0] == ((0, 8), (1, 8))
    assert log_of("vllm", knobs, 9, workload)[0][0] == ((0, 8),)


def test_release_0_11_bounds_a_lone_request_too():
    workload = Workload((Request(0, 0, 12, 1),))
    knobs = dict(long_prefill_token_threshold=8)
    assert [entry[0] for entry in log_of("vllm_0_11", knobs, 9, workload)] == [((0, 8),), ((0, 4),)]
    assert log_of("vllm", knobs, 9, workload)[0][0] == ((0, 12),)


def test_release_0_11_passes_a_whole_prompt_by_and_keeps_its_place():
    workload = Workload((Request(0, 0, 30, 2), Request(1, 0, 30, 2), Request(2, 0, 9, 2)))
    knobs = dict(enable_chunked_prefill=False)
    older = [entry[0] for entry in log_of("vllm_0_11", knobs, 32, workload)]
    assert older[:2] == [((0, 30), (2, 9)), ((0, 1), (2, 1), (1, 30))]
    assert log_of("vllm", knobs, 32, workload)[0][0] == ((0, 30),)


def test_chunking_changes_a_decision():
    # The second prompt exceeds what the first leaves of the budget.
    workload = Workload((Request(0, 0, 30, 3), Request(1, 0, 30, 3)))
    whole = dict(enable_chunked_prefill=False)
    assert log_of("vllm", {}, 32, workload) != log_of("vllm", whole, 32, workload)


def test_whole_prompt_gate_changes_a_decision():
    # The second prompt's first chunk fits, all of it does not.
    workload = Workload((Request(0, 0, 12, 3), Request(1, 0, 30, 3)))
    chunks = dict(long_prefill_token_threshold=8)
    without = chunks | dict(scheduler_reserve_full_isl=False)
    assert log_of("vllm", chunks, 9, workload) != log_of("vllm", without, 9, workload)


def test_delivery_is_a_fact_for_whoever_delivers():
    """The knob decides when tokens reach the client, not what is computed."""
    assert policies.static(delivery="stream").traits.deliver_at == "token"
    assert policies.static(delivery="at_end").traits.deliver_at == "batch_end"


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: policies.vllm(max_num_seqs=0), ["max_num_seqs = 0"]),
        (lambda: policies.vllm(max_num_batched_tokens=1.5), ["max_num_batched_tokens = 1.5"]),
        (
            lambda: policies.vllm(max_num_batched_tokens=4, max_num_seqs=8),
            ["max_num_batched_tokens = 4", "max_num_seqs = 8"],
        ),
        (
            lambda: policies.vllm(long_prefill_token_threshold=-1),
            ["long_prefill_token_threshold = -1"],
        ),
        (lambda: policies.vllm(watermark=1.0), ["watermark = 1.0"]),
        (lambda: policies.orca(max_bs=0), ["max_bs = 0"]),
        (lambda: policies.static(max_batch_size=-2), ["max_batch_size = -2"]),
        (lambda: policies.static(padding="none"), ["padding = 'none'", "ragged"]),
        (lambda: policies.static(delivery="never"), ["delivery = 'never'", "at_end"]),
        (lambda: policies.get("fifo"), ["policy = 'fifo'", "vllm"]),
    ],
)
def test_impossible_values_are_named(build, names):
    with pytest.raises(ValueError) as error:
        build()
    for name in names:
        assert name in str(error.value)


def test_start_up_rules_name_the_limit():
    numbers = system(LIMITS, block_size=4, num_blocks=12, max_length=48)
    for policy, words in (
        (policies.orca(max_bs=7), ["max_bs = 7", "limits.seats = 6"]),
        (policies.vllm(max_num_seqs=4), ["max_num_batched_tokens = 2048", "limits.tokens = 64"]),
        (
            policies.vllm(
                max_num_batched_tokens=40, max_num_seqs=4, enable_chunked_prefill=False
            ),
            ["max_num_batched_tokens = 40", "max_length = 48"],
        ),
    ):
        with pytest.raises(ValueError) as error:
            initial_state(policy, LIMITS, numbers)
        for word in words:
            assert word in str(error.value)


def test_vllm_budget_rule_belongs_to_vllm_alone():
    numbers = system(LIMITS, block_size=4, num_blocks=12, max_length=48)
    for policy in (policies.orca(max_bs=6), policies.static(max_batch_size=6)):
        initial_state(policy, LIMITS, numbers)


def test_names_lists_every_policy():
    assert policies.names == sorted(policies.names)
    assert {"vllm", "static", "orca"} <= set(policies.names)
    assert all(callable(policies.get(name)) for name in policies.names)
    with pytest.raises(AttributeError, match="no policy 'fifo'"):
        policies.fifo  # noqa: B018
