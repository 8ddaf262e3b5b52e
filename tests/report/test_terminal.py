"""Timelines in text, exact to the character."""

from dataclasses import replace

import pytest

from cbjax.report import ascii_timeline
from cbjax.report.terminal import KEY


def test_the_worked_example_by_request(example):
    static = example(True)
    assert ascii_timeline(static.tables, static.names).splitlines() == [
        "iteration  012345",
        "A          PD",
        "B          PDDD",
        "C          ....PD",
        KEY,
    ]


def test_the_worked_example_by_seat(example):
    static, continuous = example(True), example(False)
    assert ascii_timeline(static.tables, static.names, rows="seat").splitlines() == [
        "iteration  012345",
        "seat 0     AA  CC",
        "seat 1     BBBB",
        "waiting    1111",
    ]
    assert ascii_timeline(continuous.tables, continuous.names, rows="seat").splitlines() == [
        "iteration  0123",
        "seat 0     AACC",
        "seat 1     BBBB",
        "waiting    11",
    ]


def test_preemption_and_stalls_show(batcher_run):
    run = batcher_run(num_blocks=20)
    text = ascii_timeline(run.tables)
    assert "!~" in text
    lines = text.splitlines()
    assert lines[0].startswith("iteration  0         10        20")
    assert len(lines) == 2 + len(run.tables.requests)


def test_long_runs_and_runs_without_a_schedule_are_refused(batcher_run):
    run = batcher_run()
    with pytest.raises(ValueError, match="no schedule; record=iterations"):
        ascii_timeline(replace(run.tables, schedule=None))
    many = replace(run.tables, iterations=run.tables.iterations.sample(401, with_replacement=True))
    with pytest.raises(ValueError, match="401 iterations do not fit"):
        ascii_timeline(many)
