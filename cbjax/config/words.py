"""Words `key=value` of a command line as one record, for commands that compose no experiment."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from cbjax.config.errors import ConfigError, impossible, nearest


def read_words(question: type, words: Sequence[str]) -> dict[str, Any]:
    """The fields that the words give; one whose default is a tuple takes numbers with commas.

    Args:
        question: a dataclass, whose fields are the known keys.
        words: `key=value` each.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type.
    """
    known = {field.name: field for field in fields(question)}
    given: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in known:
            raise ConfigError(f"{word!r}: {nearest(key, known)} Write key=value.")
        kind, several = known[key].type, isinstance(known[key].default, tuple)
        try:
            if several:
                given[key] = tuple(int(value) for value in text.split(","))
            else:
                given[key] = kind(text) if kind in (int, float) else text
        except ValueError:
            remedy = "give a number" + (", or several with commas" if several else "")
            raise impossible(key, text, remedy) from None
    return given
