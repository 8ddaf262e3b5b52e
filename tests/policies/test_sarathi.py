"""The schedulers of the Sarathi repository: traces by hand, knobs, and the faults on request."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.state import initial_state
from cbjax.parity.systems import format_of
from cbjax.parity.systems.sarathi import FORMAT, read
from cbjax.parity.traces import first_difference, load, replay
from cbjax.parity.workload import Request, Workload
from tests.drawn import drawn
from tests.policies.beside import LIMITS, Case, array_log, mismatch, oracle_log
from tests.policies.oracles.sarathi import SCHEDULERS, OriginalRaises, cases
from tests.policies.test_oracles import compare, describe

OPEN_FILE = Path(__file__).resolve().parents[3] / "shared" / "golden" / "sarathi_open.jsonl.gz"
TRACE_A = Workload((Request(0, 0, 6, 3), Request(1, 0, 9, 3)))
BURST = Workload(tuple(Request(id, 0, 5 + id, 6 + id % 3) for id in range(8)))
SEATS = dict(max_num_seqs=4)


def log_of(workload, block_size=4, num_blocks=10, max_length=48, **knobs):
    """The policy's log, after checking that the oracle says the same."""
    knobs = SEATS | knobs
    one = Case(
        "sarathi", knobs, block_size, num_blocks, max_length, workload,
        swap_blocks=num_blocks if knobs.get("faithful") else 0,
    )
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def tokens(log):
    return [dict(entry.scheduled) for entry in log]


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        (dict(chunk_size=10), [{0: 6, 1: 4}, {0: 1, 1: 5}, {0: 1, 1: 1}, {1: 1}]),
        (
            dict(scheduler="simple_chunking", chunk_size=10),
            [{0: 6, 1: 4}, {0: 1}, {1: 5}, {0: 1, 1: 1}, {1: 1}],
        ),
        (
            dict(scheduler="vllm", max_batched_tokens=10),
            [{0: 6}, {1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}],
        ),
        (dict(scheduler="orca"), [{0: 6, 1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}]),
        (dict(scheduler="faster_transformer"), [{0: 6, 1: 9}, {0: 1, 1: 1}, {0: 1, 1: 1}]),
    ],
    ids=lambda value: value.get("scheduler", "sarathi") if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("faithful", [False, True])
def test_trace_a_prefill_of_two_prompts(knobs, expected, faithful):
    whole = knobs.get("scheduler") in ("orca", "faster_transformer")
    log = log_of(
        TRACE_A, 1, 64, 24 if whole else 48, faithful=faithful, **knobs
    )
    assert tokens(log) == expected


@pytest.mark.parametrize(
    ("base", "changed"),
    [
        (dict(chunk_size=20), dict(chunk_size=9)),
        (dict(chunk_size=20), dict(max_num_seqs=2)),
        (dict(chunk_size=20), dict(watermark=0.4)),
        (dict(chunk_size=20), dict(max_model_len=8)),
        (dict(chunk_size=20), dict(scheduler="simple_chunking")),
        (dict(scheduler="vllm"), dict(max_batched_tokens=12)),
        (dict(scheduler="vllm"), dict(max_model_len=9)),
        (dict(scheduler="orca"), dict(max_model_len=16)),
        (dict(scheduler="orca"), dict(scheduler="faster_transformer")),
    ],
    ids=lambda value: "-".join(map(str, value.values())),
)
def test_knob_changes_a_decision(base, changed):
    blocks = 30 if base.get("scheduler") == "orca" else 10
    before, after = (log_of(BURST, 4, blocks, **knobs) for knobs in (base, base | changed))
    assert tokens(before) != tokens(after)


SCHEDULE = dict(
    enable_dynamic_chunking_schedule=True, low_chunk_size=32, high_chunk_size=64,
    chunk_schedule_max_tokens=20, chunk_schedule_stages=2,
)


@pytest.mark.parametrize(
    "changed",
    [
        dict(low_chunk_size=64), dict(high_chunk_size=32), dict(chunk_schedule_max_tokens=120),
        dict(chunk_schedule_stages=1),
        dict(zip(SCHEDULE, [False, 0, 0, 0, 0], strict=True)) | dict(chunk_size=48),
    ],
    ids=lambda value: "-".join(value),
)
def test_schedule_of_chunks_changes_a_decision(changed):
    """The third prompt has 33 tokens left when its second stage begins: two decodes and 30."""
    workload = Workload((Request(0, 0, 40, 2), Request(1, 0, 12, 9), Request(2, 0, 45, 2)))
    log = log_of(workload, 4, 40, **SCHEDULE)
    assert tokens(log) != tokens(log_of(workload, 4, 40, **SCHEDULE | changed))


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        (dict(scheduler="fifo"), ["scheduler = 'fifo'", "simple_chunking"]),
        (dict(chunk_size=0), ["chunk_size = 0"]),
        (dict(max_num_seqs=0), ["max_num_seqs = 0"]),
        (dict(watermark=1.0), ["watermark = 1.0"]),
        (dict(max_model_len=-1), ["max_model_len = -1"]),
        (dict(scheduler="vllm", chunk_size=64), ["chunk_size = 64", "max_batched_tokens"]),
        (dict(scheduler="orca", watermark=0.1), ["watermark = 0.1"]),
        (dict(low_chunk_size=32), ["low_chunk_size = 32"]),
        (dict(enable_dynamic_chunking_schedule=True), ["low_chunk_size = 0"]),
        (SCHEDULE | dict(low_chunk_size=40), ["low_chunk_size = 40", "32"]),
        (SCHEDULE | dict(chunk_schedule_stages=99), ["chunk_schedule_stages = 99"]),
        (SCHEDULE | dict(chunk_size=64), ["chunk_size = 64"]),
    ],
)
def test_impossible_values_are_named(knobs, names):
    with pytest.raises(ValueError) as error:
        policies.sarathi(**knobs)
    for name in names:
        assert name in str(error.value)


def test_start_up_rules_name_the_limit():
    numbers = system(LIMITS, block_size=4, num_blocks=12, max_length=48)
    for knobs, words in (
        (dict(), ["max_num_seqs = 128", "limits.seats = 6"]),
        (SEATS, ["chunk_size = 512", "limits.tokens = 64"]),
        (
            SEATS | SCHEDULE | dict(high_chunk_size=96),
            ["high_chunk_size = 96", "limits.tokens = 64"],
        ),
        (SEATS | dict(chunk_size=8, faithful=True), ["swap_blocks = 0", "num_blocks = 12"]),
    ):
        with pytest.raises(ValueError) as error:
            initial_state(policies.sarathi(**knobs), LIMITS, numbers)
        for word in words:
            assert word in str(error.value)


def test_long_prefill_does_not_stall_a_decode():
    """FAULTS A5: a prompt of many chunks beside a decode; simple chunking alternates."""
    workload = Workload((Request(0, 0, 2, 20), Request(1, 1, 40, 2)))
    log = log_of(workload, 4, 20, chunk_size=5)
    assert all(0 in step for step in tokens(log)[:20])
    alternating = tokens(log_of(workload, 4, 20, scheduler="simple_chunking", chunk_size=5))
    assert alternating[1:5] == [{0: 1}, {1: 5}, {0: 1}, {1: 5}]


def test_steady_prompts_starve_decodes_of_whole_prompts_first():
    """FAULTS A4: by the rule of the baseline, stated; the stall-free scheduler has no gap."""
    workload = Workload(
        (Request(0, 0, 2, 6), *(Request(id, id, 8, 1) for id in range(1, 12)))
    )
    first = tokens(log_of(workload, 4, 20, scheduler="vllm"))
    assert not any(0 in step for step in first[1:12])
    assert all(0 in step for step in tokens(log_of(workload, 4, 20, chunk_size=12))[:6])


def test_many_partial_prefills_and_more_decodes_than_the_budget():
    """FAULTS A9: four decodes under a budget of 3; the prompt waits, no chunk is negative."""
    workload = Workload((*(Request(id, 0, 1, 8) for id in range(4)), Request(4, 0, 6, 1)))
    log = log_of(workload, 4, 20, chunk_size=3, max_num_seqs=5)
    assert all(sum(step.values()) <= 4 for step in tokens(log))
    assert {id for entry in log for id in entry.finished} == set(range(5))


def test_head_that_never_fits_is_refused():
    """FAULTS A1: 4 blocks of 4, a prompt of 20 and one of 4 behind it."""
    workload = Workload((Request(0, 0, 20, 3), Request(1, 0, 4, 3)))
    for scheduler in SCHEDULERS:
        log = log_of(workload, 4, 4, scheduler=scheduler, **chunk(scheduler))
        assert log[0].refused == ((0, "never_fits"),)
        assert tokens(log) == [{1: 4}, {1: 1}, {1: 1}]


def chunk(scheduler):
    return dict(chunk_size=32) if scheduler in ("sarathi", "simple_chunking") else {}


def test_prompt_beyond_the_models_length_is_refused_by_the_policy():
    """FAULTS E3: it is turned away with a reason when it is its turn, and nothing is cut."""
    workload = Workload((Request(0, 0, 4, 3), Request(1, 0, 15, 3), Request(2, 0, 4, 3)))
    log = log_of(workload, 4, 12, chunk_size=16, max_model_len=12)
    assert log[0].refused == ((1, "prompt_too_long"),)
    assert tokens(log)[0] == {0: 4, 2: 4}
    log = log_of(workload, 4, 12, scheduler="vllm", max_batched_tokens=12)
    assert log[0].refused == ((1, "prompt_exceeds_iteration"),)


def test_long_prompt_above_the_watermark_is_let_in_when_nothing_runs():
    """FAULTS A1: with the fault it would wait for ever."""
    workload = Workload((Request(0, 0, 36, 2),))
    log = log_of(workload, 4, 10, chunk_size=48, watermark=0.2)
    assert log[-1].finished == (0,)
    with pytest.raises(AssertionError, match="not done"):
        oracle_log(
            Case(
                "sarathi", dict(chunk_size=48, watermark=0.2, faithful=True), 4, 10, 48, workload
            ), 50,
        )


GROWING = Workload((Request(0, 0, 6, 20), Request(1, 0, 6, 20)))


@pytest.mark.parametrize("scheduler", ["sarathi", "simple_chunking", "vllm"])
def test_outputs_survive_a_preemption(scheduler):
    """FAULTS B1, B2: the victim computes prompt and outputs again and generates no more."""
    sound = log_of(GROWING, 4, 10, scheduler=scheduler, **chunk(scheduler))
    assert {one for entry in sound for one in entry.preempted} == {1}
    assert sound[-1].finished == (1,)
    decodes = sum(1 for entry in sound for id, count in entry.scheduled if id == 1)
    # Every iteration of it yields an output, whole prefills too.
    assert decodes == 20


def test_max_tokens_restarts_on_request():
    faulty = log_of(GROWING, 4, 12, faithful=True, chunk_size=32)
    sound = log_of(GROWING, 4, 12, chunk_size=32)
    assert [entry.preempted for entry in faulty if entry.preempted][0] == (1,)

    def outputs_of_last(log):
        return sum(1 for entry in log for id, _ in entry.scheduled if id == 1)

    assert outputs_of_last(sound) == 20 < outputs_of_last(faulty)


def test_lone_request_that_fills_the_pool_goes_on():
    """The original asks for a free block that it does not need, and hangs."""
    workload = Workload((Request(0, 0, 6, 11),))
    for scheduler in ("sarathi", "simple_chunking", "vllm"):
        log = log_of(workload, 4, 4, 24, scheduler=scheduler, **chunk(scheduler))
        assert not any(entry.preempted for entry in log)
        assert log[-1].finished == (0,) and len(log) == 11


def test_victim_that_is_not_reset_decodes_on_under_vllm():
    workload = Workload((Request(0, 0, 6, 11),))
    log = log_of(workload, 4, 4, 24, scheduler="vllm", faithful=True)
    lost = next(entry.iteration for entry in log if entry.preempted)
    assert log[lost].scheduled == () and log[lost].free_blocks == 4
    assert log[lost + 1].resumed == (0,) and log[lost + 1].scheduled == ((0, 1),)


def test_request_longer_than_the_budget_is_computed_again_in_pieces():
    """The original drops it: its prompt and outputs exceed the longest prompt."""
    knobs = dict(scheduler="vllm", max_batched_tokens=8)
    sound = log_of(GROWING, 4, 10, **knobs)
    assert {id for entry in sound for id in entry.finished} == {0, 1}
    assert not any(entry.refused for entry in sound)
    pieces = [dict(entry.scheduled)[1] for entry in sound if dict(entry.scheduled).get(1, 0) > 1]
    assert pieces[1] == 8 and len(pieces) > 2
    faulty = log_of(GROWING, 4, 10, faithful=True, **knobs)
    assert [one for entry in faulty for one in entry.refused] == [(1, "prompt_exceeds_iteration")]


def test_no_iteration_is_empty_while_a_prompt_waits_for_its_turn():
    workload = Workload((Request(0, 0, 20, 2),))
    knobs = dict(scheduler="simple_chunking", chunk_size=8)
    assert tokens(log_of(workload, **knobs)) == [{0: 8}, {0: 8}, {0: 4}, {0: 1}]
    assert {} in tokens(log_of(workload, faithful=True, **knobs))


def with_end(case: Case, iteration: int) -> Case:
    """The case with everything aborted in that iteration."""
    aborts = tuple((max(iteration, one.arrival), one.id) for one in case.workload.requests)
    return replace(case, workload=replace(case.workload, aborts=aborts))


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_array_policy_decides_as_its_oracle(examples, report_line):
    seen = compare("sarathi", examples)
    report_line(describe("sarathi", seen))
    for what in ("refused", "aborted", "stopped", "backlog", "preempted"):
        assert seen[what] >= examples / 60, what


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_faults_are_those_of_the_original(examples):
    """Beside the oracle with its faults, up to where the original dies or is stopped."""

    @drawn(examples)
    @given(case=cases(faithful=True))
    def agree(case):
        case = with_end(case, 80)
        try:
            expected = oracle_log(case)
        except OriginalRaises as error:
            case = with_end(case, error.iteration)
            expected = oracle_log(case)
        difference = mismatch(array_log(case), expected)
        assert difference is None, f"{difference} in {case}"

    agree()


@pytest.mark.slow
@pytest.mark.skipif(not OPEN_FILE.exists(), reason="the recordings are not beside this checkout")
def test_marked_recordings_are_equal_up_to_where_the_original_failed():
    marked = [one for one in load(OPEN_FILE) if one.get("error") or one.get("hang")]
    assert marked and format_of(marked[0]) is FORMAT
    for recorded in marked:
        trace = read(recorded, faithful=True)
        end = len(trace.iterations) - (1 if recorded.get("error") else 0)
        aborts = tuple((max(end, one.arrival), one.id) for one in trace.workload.requests)
        trace = replace(trace, workload=replace(trace.workload, aborts=aborts))
        ours, records = replay(trace, FORMAT)
        difference = first_difference(trace.iterations[:end], ours[:end], records)
        assert difference is None, (trace.name, difference)
