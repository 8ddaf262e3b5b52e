"""Decisions recorded from the originals' own schedulers, replayed: equal in every field."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from cbjax.core.limits import system
from cbjax.core.reasons import FinishReason, Refusal
from cbjax.parity.__main__ import main
from cbjax.parity.driver import run_watched
from cbjax.parity.systems import format_of
from cbjax.parity.traces import NotRead, compact, compare, first_difference, load, replay

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "golden"
SAMPLES = sorted((ROOT / "tests" / "golden").glob("*.jsonl.gz"))
HANG_FILE = SHARED / "vllm_hang.jsonl.gz"
RECORDED = sorted(SHARED.glob("*_open.jsonl.gz"))


def replay_all(path: Path, every: int = 1) -> tuple[list[str], int, str]:
    """Names of the traces that differ, how many are equal, and all counts in words."""
    differ: list[str] = []
    equal = marked = not_read = 0
    for recorded in islice(load(path), 0, None, every):
        form = format_of(recorded)
        try:
            trace = form.read(recorded)
        except NotRead:
            not_read += 1
            continue
        difference = compare(trace, form)
        if trace.marked:
            marked += 1
        elif difference:
            differ.append(f"{trace.name}, iteration {difference.iteration}: {difference.names}")
        else:
            equal += 1
    words = f"{equal} equal, {len(differ)} differ, {marked} marked, {not_read} not read"
    return differ, equal, f"{path.name}: {words}"


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.split(".")[0])
def test_sample_of_recorded_decisions_replays_equal(path, every, report_line):
    differ, equal, words = replay_all(path, every)
    report_line(words)
    assert not differ, differ[:5]
    assert equal >= 20 // every


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED, reason="the full set of recordings is not beside this checkout")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])
def test_all_recorded_decisions_replay_equal(path, report_line):
    differ, equal, words = replay_all(path)
    report_line(words)
    assert not differ, differ[:5]
    assert equal >= 50


def vllm_sample() -> list[dict]:
    return list(load(ROOT / "tests" / "golden" / "vllm.jsonl.gz"))


def test_vllm_sample_exercises_every_rule():
    """Without these the sample would pass while a rule is wrong."""
    traces = vllm_sample()
    knobs = [trace["knobs"] for trace in traces]
    preempts = [any(step["preempted"] for step in trace["iterations"]) for trace in traces]
    assert sum(preempts) >= 10
    assert sum(knob["long_prefill_token_threshold"] > 0 for knob in knobs) >= 5
    assert sum(not knob["enable_chunked_prefill"] for knob in knobs) >= 5
    assert sum(not knob["scheduler_reserve_full_isl"] for knob in knobs) >= 5
    assert sum(knob["watermark"] > 0 for knob in knobs) >= 5
    assert sum(
        any(request["output_tokens"] == 1 for request in trace["requests"]) for trace in traces
    ) >= 3
    assert {trace["block_size"] for trace in traces} == {4, 16, 32}


def test_replay_notices_a_changed_decision():
    """The comparison itself: one number changed in one iteration is found."""
    recorded = vllm_sample()[0]
    form = format_of(recorded)
    trace = form.read(recorded)
    ours, records = replay(trace, form)
    theirs = trace.iterations
    assert first_difference(theirs, ours, records) is None
    assert first_difference(theirs, ours[:-1], records).names == ["length"]
    busy = next(index for index, entry in enumerate(records) if entry.scheduled)
    theirs[busy] = theirs[busy] | dict(free_blocks=theirs[busy]["free_blocks"] + 1)
    found = first_difference(theirs, ours, records)
    assert (found.iteration, found.names) == (busy, ["free_blocks"])


def test_command_counts_and_shows_the_first_difference(tmp_path, capsys):
    good, bad = vllm_sample()[:2]
    busy = next(step for step in bad["iterations"] if step["scheduled"])
    busy["free_blocks"] += 1
    for name, lines in (("good", [good]), ("both", [good, bad])):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as out:
            out.writelines(json.dumps(compact(line)) + "\n" for line in lines)
    assert main([str(tmp_path / "good.jsonl.gz")]) == 0
    assert capsys.readouterr().out.endswith("1 equal, 0 differ, 0 marked\n")
    assert main([str(tmp_path / "both.jsonl.gz")]) == 1
    out = capsys.readouterr().out
    assert f"iteration {bad['iterations'].index(busy)} differs in ['free_blocks']" in out
    assert out.endswith("1 equal, 1 differ, 0 marked\n")


def test_command_names_a_file_it_cannot_read(tmp_path, capsys):
    broken = tmp_path / "broken.jsonl.gz"
    with gzip.open(broken, "wt") as out:
        out.write("{}\nnot JSON\n")
    for path, words in ((broken, "line 2"), (tmp_path / "none", "no such file")):
        with pytest.raises(SystemExit) as stop:
            main([str(path)])
        assert stop.value.code == 2
        assert words in capsys.readouterr().err


@pytest.mark.skipif(
    not HANG_FILE.exists(), reason="the full set of recordings is not beside this checkout"
)
def test_workloads_that_hang_the_original_end_here():
    """A request that never fits is refused, one that grows too long is cut (FAULTS A1)."""
    for recorded in load(HANG_FILE):
        form = format_of(recorded)
        trace = form.read(recorded)
        _, log = replay(trace, form)
        room = trace.num_blocks * trace.block_size
        requests = trace.workload.requests
        refused = [pair for entry in log for pair in entry.refused]
        finished = {
            request: reason
            for entry in log
            for request, reason in zip(entry.finished, entry.finish_reasons, strict=True)
        }
        too_long = {one.id for one in requests if one.prompt >= room}
        assert refused == [(id, Refusal.NEVER_FITS.word) for id in sorted(too_long)]
        assert set(finished) == {one.id for one in requests} - too_long
        assert set(finished.values()) == {FinishReason.LENGTH.word}
        assert trace.marked and len(log) < 100


def test_samples_are_small():
    for path in SAMPLES:
        assert path.stat().st_size < 120_000, path.name


def test_watched_values_come_from_between_the_verbs():
    trace = format_of(vllm_sample()[0]).read(vllm_sample()[0])
    form = format_of(vllm_sample()[0])
    numbers = system(
        form.limits, block_size=trace.block_size, num_blocks=trace.num_blocks,
        max_length=trace.max_length,
    )
    turns = run_watched(trace.policy, trace.workload, form.limits, numbers, watch=_in_flight)
    for entry, watched in turns:
        assert int(watched["tokens"]) == sum(tokens for _, tokens in entry.scheduled)


def _in_flight(state, plan):
    return dict(tokens=state.rows.in_flight.sum())
