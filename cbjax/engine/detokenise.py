"""Text from token bytes as they come, never showing half a character.

Tokens of a byte-level vocabulary cut UTF-8 anywhere, so text is made from bytes, not by decoding
tokens one by one. What cannot be shown yet is at most three bytes; they are plain data handed back
to the caller, who keeps them with the request, so there is no state here.
"""

from codecs import utf_8_decode
from collections.abc import Iterable


def detokenise(
    pending: bytes, pieces: bytes | Iterable[bytes], *, final: bool = False
) -> tuple[str, bytes]:
    """Turn the next bytes of a text into the characters that are complete.

    All returned texts joined equal the decoding of all bytes at once, however they are split. A
    byte that can never become a character is shown as one U+FFFD as soon as that is certain.

    Args:
        pending: what the previous call handed back; `b""` at the start.
        pieces: the bytes of the new tokens, joined or one entry per token.
        final: nothing follows, so an incomplete character becomes one U+FFFD.

    Returns:
        The new text, and the bytes to pass to the next call.
    """
    waiting = pending + (pieces if isinstance(pieces, bytes) else b"".join(pieces))
    text, used = utf_8_decode(waiting, "replace", final)
    return text, waiting[used:]
