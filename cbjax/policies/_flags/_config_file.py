"""Flags in a YAML file that a command line names: each entry is a flag, and the line itself wins.

As vLLM and SGLang read theirs: `true` is a switch, `false` is nothing, a list is several words, a
mapping is one word of JSON.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from cbjax.policies._flags._table import Table
from cbjax.policies._flags._values import FlagsError


def with_file(table: Table, words: Sequence[str]) -> list[str]:
    """The words with those of the file in front of the flags, in place of the flag that names it.

    Raises:
        FlagsError: the file cannot be read, holds something else, or turns off by `false` what the
            server would leave as it is.
    """
    flag = table.config
    places = [
        place for place, word in enumerate(words) if flag and word.split("=", 1)[0] == flag
    ]
    if not places:
        return [*words]
    if len(places) > 1:
        raise FlagsError(f"{flag}: given {len(places)} times; the server reads one file")
    place = places[0]
    _, given, path = words[place].partition("=")
    end = place + 1
    if not given:
        path, end = next(iter(words[end:]), ""), end + 1
    rest = [*words[:place], *words[end:]]
    first = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
    return [*rest[:first], *_words(table, path), *rest[first:]]


def _words(table: Table, path: str) -> Iterator[str]:
    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise FlagsError(f"{table.config} {path}: {error}") from None
    if not isinstance(entries, dict):
        raise FlagsError(f"{table.config} {path}: give one flag per line, `max-num-seqs: 64`")
    for key, value in entries.items():
        name = f"--{key}".replace("_", "-") if table.dashes else f"--{key}"
        if value is None:
            raise FlagsError(f"{table.config} {path}: {key} has no value; give one or remove it")
        if value is False:
            _require_unsaid(table, path, name)
        elif isinstance(value, list):
            yield from (name, *map(str, value)) if value else ()
        elif value is True:
            yield name
        else:
            yield from (name, json.dumps(value) if isinstance(value, dict) else str(value))


def _require_unsaid(table: Table, path: str, name: str) -> None:
    """The server drops what is false; where that is not what it says, say so."""
    knobs = {name: flag.knob for flag in table.flags for name in flag.names.split()}
    off = next(
        (flag.names.split()[0] for flag in table.flags
         if flag.knob and flag.knob == knobs.get(name) and flag.const is False), None,
    )
    if off is not None:
        raise FlagsError(
            f"{table.config} {path}: {name[2:]}: false is dropped by the server and turns nothing "
            f"off; write {off[2:]}: true"
        )
