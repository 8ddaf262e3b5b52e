"""The ladder: every schedulable batch has a rung, and the greatest batch is the last one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax.core.ladder import Ladder, Rung, ladder


@given(st.integers(1, 300), st.integers(1, 64), st.data())
def test_every_batch_has_the_smallest_rung_that_holds_it(tokens, seats, data):
    rungs = ladder(tokens, seats)
    wanted = data.draw(st.integers(1, tokens))
    sequences = data.draw(st.integers(1, min(seats, wanted)))
    chosen = rungs.choose(wanted, sequences)
    fits = [r.tokens >= wanted and r.sequences >= sequences for r in rungs.rungs]
    assert chosen == fits.index(True)


@given(st.integers(1, 20_000), st.integers(1, 512))
def test_the_last_rung_is_the_budget_not_the_next_power_of_two(tokens, seats):
    rungs = ladder(tokens, seats).rungs
    assert rungs[-1] == Rung(tokens, min(seats, tokens))
    assert list(rungs) == sorted(set(rungs))
    assert len(rungs) <= 2 * (tokens.bit_length() + 1)


def test_own_sizes_are_kept():
    rungs = ladder(100, 8, decode=[8], mixed=[32]).rungs
    assert rungs == (Rung(8, 8), Rung(32, 8), Rung(100, 8))
    assert str(rungs[-1]) == "100x8"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ladder(0, 4), "at least 1"),
        (lambda: ladder(64, 4, mixed=[128]), "128 is not within 1..64"),
        (lambda: ladder(64, 4, decode=[8]), "8 is not within 1..4"),
        (lambda: Ladder((Rung(8, 8),)).choose(9, 1), "no rung"),
    ],
)
def test_impossible_ladders_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
