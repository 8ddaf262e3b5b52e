"""The trace is JSON that Perfetto reads: named threads, spans that nest, counters."""

import json

from cbjax.report import write_trace


def events_of(runs, tmp_path) -> list[dict]:
    path = write_trace(runs, tmp_path / "figures" / "trace.json")
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def test_seats_are_named_threads_of_one_process_per_run(runs, tmp_path):
    events = events_of(runs, tmp_path)
    names = [event for event in events if event["ph"] == "M"]
    processes = [e["args"]["name"] for e in names if e["name"] == "process_name"]
    assert processes == [run.label for run in runs]
    threads = {e["args"]["name"] for e in names if e["name"] == "thread_name" and e["pid"] == 3}
    assert threads == {"iterations", "seat 0", "seat 1", "seat 2", "seat 3"}


def test_spans_of_a_thread_never_overlap_and_cover_all_grants(batcher_run, tmp_path):
    run = batcher_run(num_blocks=20)
    events = events_of([run], tmp_path)
    spans: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    grants = run.tables.schedule.filter(run.tables.schedule["kind"] != "preempted")
    assert sum(map(len, spans.values())) == len(grants) + len(run.tables.iterations)
    for thread in spans.values():
        thread.sort()
        for (_, end), (start, _) in zip(thread, thread[1:], strict=False):
            assert start >= end - 1e-3


def test_counters_waits_and_preemptions(batcher_run, tmp_path):
    run = batcher_run(num_blocks=20)
    events = events_of([run], tmp_path)
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"running", "waiting", "free_blocks"}
    assert len(counters) == 3 * len(run.tables.iterations)
    begun = [event["id"] for event in events if event["ph"] == "b"]
    ended = [event["id"] for event in events if event["ph"] == "e"]
    assert begun == ended
    assert len(set(begun)) == len(begun)
    lost = [event for event in events if event["ph"] == "i"]
    assert len(lost) == run.metrics["preemptions"] > 0


def test_times_are_microseconds_and_requests_have_their_names(example, tmp_path):
    events = events_of([example(False)], tmp_path)
    first = next(event for event in events if event["name"] == "A prefill")
    assert (first["ts"], first["dur"]) == (0.0, 1e6)
    assert first["args"] == {"tokens": 1}
