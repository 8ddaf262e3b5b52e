"""A command line read with a system's table: from words to knobs, settings and what is ignored."""

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from cbjax.policies._flags._config_file import with_file
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, knobs_of, table_of, tables
from cbjax.policies._flags._values import FlagsError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


def from_flags(command: str | Sequence[str], system: str | None = None) -> Server:
    """Read a server's command line, e.g. `from_flags("vllm serve MODEL --max-num-seqs 64")`.

    Leading environment variables are read as well (`VLLM_USE_V1=0 vllm serve ...` is `vllm_v0`).

    Args:
        command: the line as typed, or its words.
        system: which system it is; None: the command says it.

    Returns:
        The policy with its knobs, the settings that are not the policy's, and the flags that say
        nothing about scheduling.

    Raises:
        FlagsError: a command or flag that is not known, or a value that cannot be read; a flag that
            scheduling depends on and that is not modelled.
        ValueError: the policy refuses a value.
    """
    words = shlex.split(command.replace("\\\n", " ")) if isinstance(command, str) else [*command]
    variables, words = _variables(words)
    system, words = _system(words, variables, system)
    table = table_of(system)
    reading = _Reading(system, table)
    for name, value in variables.items():
        reading.take_variable(name, value)
    words = with_file(table, [_spelled(table, word) for word in words])
    seen, rest = _seen(table, words)
    given = {name for _, name, _ in seen}
    for needed, reason in table.needs.items():
        if needed not in given:
            raise FlagsError(f"{needed}: {reason}")
    # What depends on a choice is read after the choice.
    for flag, name, value in sorted(seen, key=lambda one: bool(one[0] and one[0].where)):
        reading.take(flag, name, value)
    return reading.server(rest)


class _Reading:
    """What has been read so far."""

    def __init__(self, system: str, table: Table) -> None:
        self.system, self.table = system, table
        self.known = knobs_of(system)
        self.knobs: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.ignored: list[str] = []

    def take_variable(self, name: str, value: str) -> None:
        table = self.table
        flag = next((flag for flag in table.flags if flag.env == name), None)
        if flag is not None:
            self._set(flag, name, _read(flag, name, value))
        elif name not in table.when:
            prefixed = table.env_prefix and name.startswith(table.env_prefix)
            known = [*table.env_ignored.split(), *(flag.env for flag in table.flags)]
            if prefixed and name not in known:
                raise unknown(name, known)
            self.ignored.append(f"{name}={shlex.quote(value)}")

    def take(self, flag: Flag | None, name: str, value: Any) -> None:
        words = [name, *([value] if isinstance(value, str) else value or [])]
        if flag is None or (flag.where and not self._holds(flag.where)):
            self.ignored.append(shlex.join(words))
        elif flag.const is not None:
            self._set(flag, name, flag.const, words)
        elif flag.refused:
            self._set(flag, name, value, words)
        else:
            self._set(flag, name, _read(flag, name, value), words)

    def _holds(self, where: tuple[str, Any]) -> bool:
        knob, value = where
        return self.knobs.get(knob, self.known[knob]) == value

    def _set(self, flag: Flag, name: str, value: Any, words: Sequence[str] = ()) -> None:
        if flag.refused:
            if str(value) not in flag.unless:
                raise FlagsError(f"{shlex.join(words) or name}: {flag.refused}")
            self.ignored.append(shlex.join(words) or f"{name}={value}")
        elif flag.setting:
            self.settings[flag.setting] = value
        elif flag.knob in self.known:
            self.knobs[flag.knob] = value
        elif flag.as_if is None or value != flag.as_if:
            raise FlagsError(f"{name}: the policy {self.system} does not model it")
        else:
            self.ignored.append(shlex.join(words))

    def server(self, rest: Sequence[str]) -> Server:
        """All of it as a record; `rest` are words without a flag."""
        if self.table.model_first and rest:
            self.settings["model"], rest = rest[0], rest[1:]
        if rest:
            raise FlagsError(f"{rest[0]!r}: a word without a flag; remove it or name its flag")
        notes = [
            f"{target}: {note}" for target, note in self.table.notes.items()
            if target not in {**self.knobs, **self.settings}
        ]
        always = self.table.always
        ignored = tuple(text for text in self.ignored if text not in always)
        settings = {**asdict(self.table.defaults), **self.settings}
        if self.table.finish is not None:
            self.table.finish(self.knobs, settings)
        return Server(
            self.system, self.knobs, Settings(**settings), ignored, tuple(notes)
        )


def _read(flag: Flag, name: str, word: str) -> Any:
    try:
        return flag.read(word)
    except ValueError as error:
        raise FlagsError(f"{name} = {word!r}: {error}") from None


def _variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Leading environment variables, and the words behind them."""
    words = [*words[1:]] if words and words[0] == "env" else [*words]
    count = next(
        (place for place, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words)
    )
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def _system(
    words: Sequence[str], variables: dict[str, str], wanted: str | None
) -> tuple[str, list[str]]:
    """The system that a command belongs to, and the words behind the command."""
    choice = tables() if wanted is None else {wanted: table_of(wanted)}
    fitting = []
    for name, table in choice.items():
        if wanted is None and any(variables.get(key) != told for key, told in table.when.items()):
            continue
        for form in map(str.split, table.commands):
            if _starts(words, form):
                fitting.append((len(form), len(table.when), name))
        if not words and table.env_prefix and any(
            key.startswith(table.env_prefix) for key in variables
        ):
            fitting.append((0, len(table.when), name))
    if not fitting:
        forms = "; ".join(f"{table.commands[0]} ..." for table in choice.values())
        raise FlagsError(f"{shlex.join(words[:3])!r}: no server is known by it; start with {forms}")
    length, _, name = max(fitting)
    return name, [*words[length:]]


def _starts(words: Sequence[str], form: Sequence[str]) -> bool:
    if len(words) < len(form):
        return False
    first = words[0].rsplit("/", 1)[-1]
    if form[0] == "python":
        first = re.sub(r"^python[\d.]*$", "python", first)
    return [first, *words[1 : len(form)]] == [*form]


def _spelled(table: Table, word: str) -> str:
    """A word with its flag spelled as in the table."""
    if not (table.dashes and word.startswith("--")):
        return word
    name, *value = word.split("=", 1)
    return "=".join([name.replace("_", "-"), *value])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise FlagsError(message)


class _Keep(argparse.Action):
    """Keeps flag, spelling and value in the order of the line."""

    def __init__(self, *args: Any, flag: Flag | None = None, **others: Any) -> None:
        super().__init__(*args, **others)
        self.flag = flag

    def __call__(self, parser: Any, namespace: Any, values: Any, name: Any = None) -> None:
        namespace.seen.append((self.flag, name, values))


def _seen(table: Table, words: list[str]) -> tuple[list[tuple[Flag | None, str, Any]], list[str]]:
    """The flags of a line with their values, and the words without a flag."""
    # The table is the whole of what is known: nothing is abbreviated, nothing added.
    parser = _Parser(allow_abbrev=False, add_help=False)
    known: dict[str, tuple[Flag | None, Any]] = {}
    for flag in table.flags:
        for name in flag.names.split():
            known[name] = flag, None if flag.const is None else 0
    for names, follow in ((table.values, None), (table.switches, 0), (table.lists, "*")):
        known |= {name: (None, follow) for name in names.split()}
    if table.negatable:
        known |= {f"--no-{name[2:]}": (None, 0) for name in table.switches.split()}
    for name, (row, follow) in known.items():
        parser.add_argument(name, action=_Keep, flag=row, nargs=follow, dest="_")
    for word in words:
        name = word.split("=", 1)[0]
        if name.startswith("-") and name not in known and not _NUMBER.fullmatch(word):
            raise unknown(name, known)
    namespace, rest = parser.parse_known_args(words, argparse.Namespace(seen=[]))
    return namespace.seen, rest


def unknown(name: str, known: Any) -> FlagsError:
    """An unknown flag, with those that look like it."""
    swapped = name.replace("_", "-") if "_" in name else "--" + name[2:].replace("-", "_")
    close = get_close_matches(name, [one for one in known if one], n=3, cutoff=0.6)
    close = [swapped] if swapped in known else close
    remedy = f"did you mean {' or '.join(close)}?" if close else "see the server's own --help"
    return FlagsError(f"{name}: no such flag is known; {remedy}")


