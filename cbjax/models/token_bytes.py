"""From the spelling of a token in its vocabulary to the bytes that it stands for."""

import functools
import re

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.cache
def byte_to_char() -> dict[int, str]:
    """How byte-level BPE (GPT-2, 2019) spells bytes: as they print, the others from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling = {byte: chr(byte) for byte in prints}
    hidden = (byte for byte in range(256) if byte not in spelling)
    return spelling | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


@functools.cache
def char_to_byte() -> dict[str, int]:
    """The byte behind each character of a byte-level token."""
    return {char: byte for byte, char in byte_to_char().items()}


def spelled_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; one that uses other characters is taken as UTF-8."""
    known = char_to_byte()
    if all(char in known for char in token):
        return bytes(known[char] for char in token)
    return token.encode()


def sentence_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: `<0xNN>` is one byte, U+2581 a space."""
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()
