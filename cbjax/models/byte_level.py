"""Byte-level BPE: how 256 bytes are spelled as printable characters inside a vocabulary."""

import functools


@functools.cache
def byte_to_char() -> dict[int, str]:
    """The spelling of each byte (GPT-2, 2019): itself where it prints, else from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelling = {byte: chr(byte) for byte in prints}
    hidden = (byte for byte in range(256) if byte not in spelling)
    return spelling | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


@functools.cache
def char_to_byte() -> dict[str, int]:
    """The byte behind each character of a byte-level token."""
    return {char: byte for byte, char in byte_to_char().items()}


def spelled_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; characters outside the alphabet count as UTF-8."""
    known = char_to_byte()
    if all(char in known for char in token):
        return bytes(known[char] for char in token)
    return token.encode()
