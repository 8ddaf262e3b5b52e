"""Streaming text from bytes: no half characters, nothing lost, nothing replaced twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax.engine.detokenise import detokenise


def stream(pieces: list[bytes]) -> list[str]:
    shown, pending = [], b""
    for piece in pieces:
        text, pending = detokenise(pending, piece)
        assert len(pending) <= 3
        shown.append(text)
    text, pending = detokenise(pending, b"", final=True)
    assert pending == b""
    return [*shown, text]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in zip(marks, marks[1:], strict=False)]


ANY_BYTES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(lambda text: text.encode()),
    st.lists(
        st.sampled_from(["ď".encode(), "🔥".encode(), b"\xf0\x9f", b"\xff", b"\xed\xa0", b"a"])
    ).map(b"".join),
)


@given(ANY_BYTES, st.lists(st.integers(0, 60), max_size=12))
def test_any_split_streams_to_the_full_decoding(data, places):
    """FAULTS G1."""
    assert "".join(stream(cut(data, places))) == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["ď", "🔥", "👍🏽", "日本語", "a\u200db"])
def test_single_bytes_show_whole_characters_only(text):
    """FAULTS G1."""
    shown = stream([bytes([byte]) for byte in text.encode()])
    assert "\ufffd" not in "".join(shown)
    assert [piece for piece in shown if piece] == list(text)


def test_a_stream_that_ends_within_a_character_shows_one_replacement():
    """FAULTS G1."""
    assert stream([b"a", b"\xf0", b"\x9f", b"\x94"]) == ["a", "", "", "", "\ufffd"]


def test_a_bad_byte_is_replaced_once_and_at_once():
    """FAULTS G1."""
    assert stream([b"a\xff", b"b"]) == ["a\ufffd", "b", ""]
    assert stream([b"\xe3\x81", b"x"]) == ["", "\ufffdx", ""]


def test_several_tokens_may_come_in_one_call():
    assert detokenise(b"\xe3", [b"\x81", b"\x82!"]) == ("あ!", b"")
