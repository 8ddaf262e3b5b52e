"""Stop strings over token boundaries: nothing leaks, nothing is held back needlessly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbjax.engine.stops import scan_stops


def stream(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    shown, held = [], ""
    for piece in pieces:
        scan = scan_stops(held, piece, stops)
        shown.append(scan.text)
        held = scan.held
        if scan.stop is not None:
            assert not held
            return shown, scan.stop
    scan = scan_stops(held, "", stops, final=True)
    assert not scan.held
    return [*shown, scan.text], scan.stop


def cut_by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first that completes a stop string ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=300)
@given(
    st.lists(st.text("abc", max_size=4), max_size=10),
    st.lists(st.text("abc", min_size=1, max_size=5), max_size=3),
)
def test_the_text_ends_before_the_first_complete_stop_for_any_split(pieces, stops):
    """FAULTS G2."""
    shown, stop = stream(pieces, stops)
    assert ("".join(shown), stop) == cut_by_definition("".join(pieces), stops)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1))
def test_only_a_proper_beginning_of_a_stop_is_held_back(text, stops):
    scan = scan_stops("", text, stops)
    if scan.stop is None:
        assert scan.text + scan.held == text
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        suffixes = [text[start:] for start in range(len(text) + 1)]
        assert scan.held == max((end for end in suffixes if end in beginnings), key=len)


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], ["ABC", "", "", "", ""]),
        (["Hi.", "\nUser", ":"], ["\nUser:"], ["Hi.", "", ""]),
        (["Hi.", "\nUse", "ful"], ["\nUser:"], ["Hi.", "", "\nUseful", ""]),
        (["aaa", "b"], ["aab"], ["a", ""]),
        (["one stop two"], ["two", "stop"], ["one "]),
    ],
)
def test_a_stop_spread_over_tokens_never_leaks(pieces, stops, shown):
    """FAULTS G2."""
    assert stream(pieces, stops)[0] == shown


def test_a_beginning_left_over_at_the_end_is_shown():
    assert stream(["x\nUs"], ["\nUser:"]) == (["x", "\nUs"], None)


def test_of_stops_complete_at_one_character_the_longest_wins():
    assert stream(["a\n\nUser"], ["User", "\n\nUser"]) == (["a"], "\n\nUser")


def test_text_before_min_tokens_is_shown_and_part_of_no_stop():
    assert scan_stops("", "an end", ["end"], armed=False).text == "an end"
    scan = scan_stops("", "EN", ["END"], armed=False)
    assert (scan.text, scan.held) == ("EN", "")
    assert scan_stops(scan.held, "D", ["END"]).text == "D"
