"""Static, dynamic and continuous batching told apart by the rows of requests."""

import polars as pl
import pytest

from cbjax.metrics.batching import classify_batching


def rows(*requests):
    """(scheduled arrival, admitted, finished) each, in seconds."""
    names = ("scheduled_arrival_s", "admitted_s", "finished_s")
    return pl.DataFrame(requests, schema=dict.fromkeys(names, pl.Float64), orient="row")


def test_whoever_enters_a_running_batch_shows_continuous_batching():
    assert classify_batching(rows((0, 0, 4), (0, 0, 9), (1, 4, 8))) == "continuous"


def test_a_batch_that_ends_before_the_next_begins_is_static():
    assert classify_batching(rows((0, 0, 4), (0, 0, 9), (1, 9, 12), (2, 9, 15))) == "static"


@pytest.mark.parametrize("delivered_whole", [False, True])
def test_requests_that_gather_while_nothing_runs_show_a_queue_delay(delivered_whole):
    """The first comes at 0 and is kept until 0.5; delivery plays no part."""
    first_ends = 9.0 if delivered_whole else 4.0
    batches = rows((0, 0.5, first_ends), (0.4, 0.5, 9), (2, 9, 12), (9.3, 12.5, 14))
    assert classify_batching(batches) == "dynamic"


def test_the_loop_s_own_time_between_batches_is_not_a_queue_delay():
    assert classify_batching(rows((0, 0, 4), (0, 0, 9), (1, 9.01, 12))) == "static"


@pytest.mark.parametrize(
    "requests",
    [
        (),
        ((0, 0, 4),),
        ((0, 0, 4), (5, 5, 9)),  # one user at a time
        ((0, 0, 4), (1, 4, 9)),  # one seat
        ((0, 0, 4), (0, 0, 9), (9, 9, 12)),  # nobody came while the batch ran
    ],
)
def test_rows_that_cannot_tell_give_none(requests):
    assert classify_batching(rows(*requests)) is None


def test_requests_that_never_ran_are_left_out():
    refused = rows((0, 0, 4), (0, 0, 9), (3, None, 3), (1, 9, 12))
    assert classify_batching(refused) == "static"
