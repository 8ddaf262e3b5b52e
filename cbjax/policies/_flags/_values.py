"""Words of a command line as values, and back. What cannot be read raises with the remedy."""

import re
from typing import Any

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class FlagsError(ValueError):
    """A command line that cannot be read or written; its text is all a user needs."""


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("give a whole number") from None


def human(text: str) -> int:
    """vLLM's whole numbers: 1k = 1000, 1K = 1024, 25.6k = 25600; no fractions before K, M, G, T."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            raise ValueError("give a whole number, or one with k, K, m, M, g, G, t or T") from None
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise ValueError(
            f"a number with {suffix} (a power of 1024) must be whole; did you mean "
            f"{number}{suffix.lower()}?"
        )
    return int(number) * _BINARY[suffix]


def real(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("give a number") from None


def truth(text: str) -> bool:
    """Yes or no, as environment variables say it."""
    if text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    raise ValueError("give true or false")


def gibibytes(text: str) -> int:
    """Bytes of a number of GiB."""
    return int(real(text) * 2**30)


def as_gibibytes(count: int) -> str:
    """Bytes as a number of GiB; exact, since the divisor is a power of two."""
    return as_word(count / 2**30)


def as_word(value: Any) -> str:
    """A value as it is written on a command line; a float in the fewest digits that read back."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)
