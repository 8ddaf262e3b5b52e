"""The one error of the config edge: a field, the value it was given, and what to do about it."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class ConfigError(ValueError):
    """A setting that cannot be; its text is all a user needs, so no traceback is shown for it."""


def impossible(field: str, value: Any, remedy: str) -> ConfigError:
    """An error about one field, e.g. `kv.block_size = 0: give a whole number of at least 1`."""
    return ConfigError(f"{field} = {value!r}: {remedy}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A remedy for a name that does not exist: the nearest one, else all of them."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"


def require_at_least(field: str, value: float | None, least: float) -> None:
    """Refuse a number below `least`; None (not set) is allowed.

    Raises:
        ConfigError: it is.
    """
    if value is not None and value < least:
        raise impossible(field, value, f"give a number of at least {least}")


def require_one_of(field: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a word that is not among the choices.

    Raises:
        ConfigError: it is not.
    """
    choices = list(choices)
    if value not in choices:
        raise impossible(field, value, nearest(value, choices))
