"""Decisions recorded from vLLM's own scheduler, replayed: equal in every field."""

import gzip
import json
from dataclasses import replace

import pytest

from cbjax.core.reasons import FinishReason, Refusal
from tests.policies.golden import FIELDS, SAMPLE, SHARED, differences, load, load_vllm, replay

SAMPLE_FILE = SAMPLE / "vllm_fcfs.jsonl.gz"
OPEN_FILE = SHARED / "vllm_open.jsonl.gz"
HANG_FILE = SHARED / "vllm_hang.jsonl.gz"


def replay_all(traces):
    """Differences over all traces, and how many iterations and preemptions were compared."""
    found, iterations, preemptions = [], 0, 0
    for trace in traces:
        log = replay(trace)
        found += differences(trace, log)
        iterations += len(log)
        preemptions += sum(len(entry.preempted) for entry in log)
    return found, iterations, preemptions


def test_sample_of_vllm_decisions_replays_equal(report_line):
    traces = load(SAMPLE_FILE)
    found, iterations, preemptions = replay_all(traces)
    report_line(
        f"vllm sample: {len(traces)} workloads, {iterations} iterations, "
        f"{preemptions} preemptions, {len(found)} differences"
    )
    assert not found, found[:5]
    assert preemptions > 50


@pytest.mark.skipif(
    not OPEN_FILE.exists(), reason="the full set of recorded decisions is not beside this checkout"
)
def test_all_fcfs_vllm_decisions_replay_equal(report_line):
    traces = load_vllm(OPEN_FILE)
    found, iterations, preemptions = replay_all(traces)
    report_line(
        f"vllm recorded: {len(traces)} workloads, {iterations} iterations, "
        f"{preemptions} preemptions, {len(found)} differences"
    )
    assert not found, found[:5]


def test_sample_exercises_every_rule():
    """Without these the sample would pass while a rule is wrong."""
    traces = load(SAMPLE_FILE)
    preempted, threshold = FIELDS.index("preempted"), "long_prefill_token_threshold"
    knobs = [trace["knobs"] for trace in traces]
    preempts = [any(step[preempted] for step in trace["iterations"]) for trace in traces]
    assert sum(preempts) >= 10
    assert sum(knob[threshold] > 0 for knob in knobs) >= 5
    assert sum(not knob["enable_chunked_prefill"] for knob in knobs) >= 5
    assert sum(not knob["scheduler_reserve_full_isl"] for knob in knobs) >= 5
    assert sum(knob["watermark"] > 0 for knob in knobs) >= 5
    assert sum(
        any(output == 1 for _, _, output in trace["requests"]) for trace in traces
    ) >= 3
    assert {trace["block_size"] for trace in traces} == {4, 16, 32}


def test_replay_notices_a_changed_decision():
    """The comparison itself: one number changed in one iteration is found."""
    trace = json.loads(json.dumps(load(SAMPLE_FILE)[0]))
    log = replay(trace)
    assert not differences(trace, log)
    busy = next(index for index, entry in enumerate(log) if entry.scheduled)
    trace["iterations"][busy][FIELDS.index("free_blocks")] += 1
    assert len(differences(trace, log)) == 1
    assert len(differences(trace, [*log[:-1]])) == 2
    log[busy] = replace(log[busy], running=log[busy].running + 1)
    assert len(differences(trace, log)) == 2


@pytest.mark.skipif(
    not HANG_FILE.exists(), reason="the full set of recorded decisions is not beside this checkout"
)
def test_workloads_that_hang_the_original_end_here():
    """A request that never fits is refused, one that grows too long is cut (FAULTS A1)."""
    for trace in load_vllm(HANG_FILE):
        log = replay(trace)
        room = trace["num_blocks"] * trace["block_size"]
        refused = [pair for entry in log for pair in entry.refused]
        finished = {
            request: reason
            for entry in log
            for request, reason in zip(entry.finished, entry.finish_reasons, strict=True)
        }
        too_long = {
            id for id, (_, prompt, _) in enumerate(trace["requests"]) if prompt >= room
        }
        assert refused == [(request, Refusal.NEVER_FITS.word) for request in sorted(too_long)]
        assert set(finished) == set(range(len(trace["requests"]))) - too_long
        assert set(finished.values()) == {FinishReason.LENGTH.word}
        assert len(log) < 100


def test_head_that_never_fits_blocks_nobody():
    """FAULTS A1: 4 blocks of 4, X with a 20-token prompt, Y with 4 behind it."""
    trace = dict(
        knobs=dict(max_num_batched_tokens=64, max_num_seqs=8), block_size=4, num_blocks=4,
        max_length=64, requests=[[0, 20, 3], [0, 4, 3]],
    )
    log = replay(trace)
    assert log[0].refused == ((0, Refusal.NEVER_FITS.word),)
    assert [entry.scheduled for entry in log] == [((1, 4),), ((1, 1),), ((1, 1),)]
    assert log[-1].finished == (1,)


def test_sample_is_small():
    with gzip.open(SAMPLE_FILE, "rb") as lines:
        assert len(lines.read()) < 2_000_000
    assert SAMPLE_FILE.stat().st_size < 100_000
