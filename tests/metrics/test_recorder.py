"""The recorder keeps what it was told: columns, seats, counts and delivery times."""

import numpy as np
import pytest

from cbjax.metrics import (
    ITERATION_COLUMNS,
    REQUEST_COLUMNS,
    SCHEDULE_COLUMNS,
    IterationEvent,
    Recorder,
)


def submit(recorder: Recorder, *ids: int, prompt_tokens: int = 4) -> None:
    for request_id in ids:
        recorder.submitted(
            request_id,
            class_name="chat",
            scheduled_arrival_s=0.0,
            submitted_s=0.0,
            prompt_tokens=prompt_tokens,
            max_tokens=8,
        )


def step(recorder: Recorder, start_s: float, **what) -> None:
    recorder.iteration(IterationEvent(start_s=start_s, duration_s=1.0, **what))


def test_tables_have_exactly_the_documented_columns():
    tables = Recorder().tables()
    assert tables.requests.columns == list(REQUEST_COLUMNS)
    assert tables.iterations.columns == list(ITERATION_COLUMNS)
    assert tables.schedule.columns == list(SCHEDULE_COLUMNS)
    recorder = Recorder()
    submit(recorder, 0)
    step(recorder, 0.0, admitted=[0], grants=[(0, 4, 4, "prefill")], emitted=[0])
    assert recorder.tables().requests.schema == tables.requests.schema
    assert recorder.tables().iterations.schema == tables.iterations.schema


def test_seats_are_the_lowest_free_lanes_and_are_given_back():
    recorder = Recorder()
    submit(recorder, 10, 11, 12, 13)
    step(recorder, 0.0, admitted=[10, 11], grants=[(10, 4, 4, "prefill"), (11, 4, 4, "prefill")])
    step(
        recorder, 1.0, grants=[(10, 1, 1, "decode"), (11, 1, 1, "decode")], finished=[(10, "stop")]
    )
    step(recorder, 2.0, admitted=[12], grants=[(11, 1, 1, "decode"), (12, 4, 4, "prefill")])
    step(recorder, 3.0, preempted=[11], grants=[(12, 1, 1, "decode")])
    step(recorder, 4.0, admitted=[13], grants=[(13, 4, 4, "prefill")])
    step(recorder, 5.0, admitted=[11], grants=[(11, 6, 1, "prefill")])
    rows = recorder.tables().schedule.select("iteration", "request_id", "seat", "kind").rows()
    assert rows == [
        (0, 10, 0, "prefill"),
        (0, 11, 1, "prefill"),
        (1, 10, 0, "decode"),
        (1, 11, 1, "decode"),
        (2, 11, 1, "decode"),
        (2, 12, 0, "prefill"),
        (3, 11, 1, "preempted"),
        (3, 12, 0, "decode"),
        (4, 13, 1, "prefill"),
        (5, 11, 2, "prefill"),
    ]


def test_recomputed_tokens_and_preemptions_are_counted_and_admission_keeps_its_first_time():
    recorder = Recorder()
    submit(recorder, 0)
    step(recorder, 0.0, admitted=[0], grants=[(0, 4, 4, "prefill")], emitted=[0])
    step(recorder, 1.0, preempted=[0], swapped=[0])
    step(recorder, 2.0, admitted=[0], grants=[(0, 5, 1, "prefill")], emitted=[0])
    step(recorder, 3.0, grants=[(0, 1, 1, "decode")], emitted=[0], finished=[(0, "length")])
    row = recorder.tables().requests.row(0, named=True)
    assert row["admitted_s"] == 0.0
    assert (row["preemptions"], row["swaps"], row["recomputed_tokens"]) == (1, 1, 4)
    assert row["token_times_s"] == [1.0, 3.0, 4.0]
    assert row["max_itl_s"] == 2.0
    assert (row["output_tokens"], row["finished_s"], row["finish_reason"]) == (3, 4.0, "length")


def test_a_seat_taken_from_a_request_that_has_ended_is_no_preemption_of_it():
    """A schedule that runs one iteration ahead of the results may do so."""
    recorder = Recorder()
    submit(recorder, 0)
    step(recorder, 0.0, admitted=[0], grants=[(0, 4, 4, "prefill")], emitted=[0],
         finished=[(0, "length")])
    step(recorder, 1.0, preempted=[0], swapped=[0])
    tables = recorder.tables()
    row = tables.requests.row(0, named=True)
    assert (row["preemptions"], row["swaps"]) == (0, 0)
    assert tables.iterations["preempted"].to_list() == [0, 1]


def test_delivery_at_batch_end_gives_delivery_times_and_a_later_end():
    recorder = Recorder()
    submit(recorder, 0, 1)
    both = [(0, 4, 4, "prefill"), (1, 4, 4, "prefill")]
    step(recorder, 0.0, admitted=[0, 1], grants=both, emitted=[0, 1], delivered=[])
    step(recorder, 1.0, emitted=[0, 1], delivered=[], finished=[(0, "stop")])
    step(recorder, 2.0, emitted=[1], delivered=[(0, 2), (1, 3)], finished=[(1, "stop")])
    first, second = recorder.tables().requests.rows(named=True)
    assert first["token_times_s"] == [3.0, 3.0]
    assert (first["first_token_s"], first["finished_s"], first["output_tokens"]) == (3.0, 3.0, 2)
    assert second["token_times_s"] == [3.0, 3.0, 3.0]


def test_tokens_held_back_for_ever_still_count_as_output():
    recorder = Recorder()
    submit(recorder, 0)
    step(recorder, 0.0, grants=[(0, 4, 4, "prefill")], emitted=[0], delivered=[(0, 1)])
    step(recorder, 1.0, emitted=[0], delivered=[], finished=[(0, "stop")])
    row = recorder.tables().requests.row(0, named=True)
    assert row["output_tokens"] == 2
    assert row["token_times_s"] == [1.0]


def test_padding_is_the_rung_less_what_was_scheduled():
    recorder = Recorder()
    submit(recorder, 0)
    grants = [(0, 5, 5, "prefill")]
    step(recorder, 0.0, grants=grants, rung="8x4", rung_tokens=8)
    step(recorder, 1.0, grants=grants, rung="8x4", rung_tokens=8, extra_tokens=3)
    step(recorder, 2.0, grants=grants, extra_tokens=3)
    step(recorder, 3.0, grants=grants)
    assert recorder.tables().iterations["padded_tokens"].to_list() == [3, 3, 3, 0]
    assert recorder.tables().iterations["scheduled_tokens"].to_list() == [5, 5, 5, 5]


def test_refusals_aborts_and_external_answers():
    recorder = Recorder()
    submit(recorder, 0, 1, 2)
    recorder.refused(0, 0.5, "prompt too long")
    recorder.visible(1, 0.25)
    recorder.visible(1, 0.75)
    recorder.ended(1, 1.0, "abort")
    recorder.received(2, 1.5)
    recorder.received(2, 2.0, tokens=2)
    recorder.ended(2, 2.0, "stop")
    rows = recorder.tables().requests.rows(named=True)
    assert (rows[0]["finish_reason"], rows[0]["error"]) == ("refused", "prompt too long")
    assert (rows[1]["visible_s"], rows[1]["finish_reason"]) == (0.25, "abort")
    assert rows[2]["token_times_s"] == [1.5, 2.0, 2.0]
    assert rows[2]["output_tokens"] == 3
    assert rows[2]["admitted_s"] is None


def test_numpy_values_are_accepted():
    recorder = Recorder()
    recorder.submitted(
        np.int32(3),
        scheduled_arrival_s=np.float32(0),
        submitted_s=np.float64(0),
        prompt_tokens=np.int32(4),
    )
    step(recorder, 0.0, grants=[(np.int32(3), np.int32(4), np.int32(4), "prefill")], emitted=[3])
    assert recorder.tables().schedule.row(0)[:5] == (0, 3, 0, "prefill", 4)


def test_mistakes_name_the_request():
    recorder = Recorder()
    submit(recorder, 7)
    with pytest.raises(ValueError, match="request_id=7 was submitted before"):
        submit(recorder, 7)
    with pytest.raises(ValueError, match=r"request_id=8 is unknown.*submitted\(\)"):
        step(recorder, 0.0, emitted=[8])


def test_record_levels_drop_rows_and_keep_columns():
    recorder = Recorder()
    submit(recorder, 0)
    step(recorder, 0.0, grants=[(0, 4, 4, "prefill")], emitted=[0])
    tables = recorder.tables()
    assert tables.at_level("tokens") == tables
    assert "token_times_s" not in tables.at_level("iterations").requests.columns
    assert len(tables.at_level("iterations").iterations) == 1
    assert len(tables.at_level("requests").iterations) == 0
    assert tables.at_level("requests").schedule is None
    assert len(tables.at_level("requests").requests) == 1
    assert len(tables.at_level("summary").requests) == 0
    with pytest.raises(ValueError, match="record='all' is unknown; use one of summary"):
        tables.at_level("all")
