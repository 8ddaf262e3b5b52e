"""Reading the tables of this package, and the one form in which it refuses a value."""

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@cache
def table(name: str) -> dict[str, dict[str, Any]]:
    """All entries of `data/<name>.yaml`, by name."""
    text = (files("cbjax.hardware") / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def entry(name: str, field: str, wanted: str) -> dict[str, Any]:
    """One entry of a table.

    Raises:
        ValueError: there is none of that name; the text says which there are.
    """
    known = table(name)
    close = get_close_matches(str(wanted), known, n=1)
    remedy = f"did you mean {close[0]}? " if close else ""
    require(wanted in known, field, wanted, f"{remedy}there are {', '.join(known)}")
    return known[wanted]


def require(holds: object, field: str, value: object, remedy: str) -> None:
    """Raise ValueError naming `field`, `value` and `remedy` unless `holds`."""
    if not holds:
        raise ValueError(f"{field} = {value!r}: {remedy}")
