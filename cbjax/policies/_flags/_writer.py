"""A server's command line, written from its record."""

import shlex
from dataclasses import fields
from typing import Any

from cbjax.policies._flags._reader import from_flags
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, knobs_of, table_of
from cbjax.policies._flags._values import FlagsError


def to_flags(server: Server) -> str:
    """Print the command line that a server was read from, or would be read from.

    Values that are the system's defaults are left out, unless the server would then decide by
    itself. The line is read back before it is given away: `from_flags(to_flags(x)) == x`.

    Raises:
        FlagsError: a knob or setting that no flag of this server can say.
    """
    for knobs in (server.changed, server.knobs):
        line, unsaid = _line(server, knobs)
        # What has no flag may follow from the others.
        if from_flags(line, server.system) == server:
            return line
    command = table_of(server.system).commands[0]
    raise FlagsError(
        f"{', '.join(unsaid) or line}: no flag of {command} says it; it is set in a file or in "
        "code there"
    )


def _line(server: Server, knobs: dict[str, Any]) -> tuple[str, list[str]]:
    """The line, and what it cannot say."""
    table, known = table_of(server.system), knobs_of(server.system)
    variables = [f"{name}={value}" for name, value in table.when.items()]
    words: list[str] = []
    unsaid: list[str] = []
    model: list[str] = []
    said = [("knob", name, value, known[name]) for name, value in knobs.items()]
    for item in fields(Settings):
        default = getattr(table.defaults, item.name)
        value = getattr(server.settings, item.name)
        if item.name == "model" and table.model_first and value is not None:
            model = [value]
        elif value != default:
            said.append(("setting", item.name, value, default))
    for kind, name, value, default in said:
        flag = _flag_for(server, table, kind, name, value)
        if flag is None:
            if value != default:
                unsaid.append(f"{name} = {value!r}")
        elif not flag.names:
            variables.append(f"{flag.env}={shlex.quote(flag.write(value))}")
        else:
            words.append(flag.names.split()[0])
            words += [] if flag.const is not None else [flag.write(value)]
    ignored = [text for text in server.ignored if text.startswith("-")]
    variables += [text for text in server.ignored if not text.startswith("-")]
    words = [*map(shlex.quote, [*model, *words]), *table.always, *ignored]
    return " ".join([*variables, table.commands[0], *words]), unsaid


def _flag_for(server: Server, table: Table, kind: str, name: str, value: Any) -> Flag | None:
    """The flag that says a value: a switch that sets it, or one that takes it."""
    rows = [
        flag for flag in table.flags if getattr(flag, kind) == name
        and (flag.where is None or server.knobs[flag.where[0]] == flag.where[1])
    ]
    switches = [flag for flag in rows if flag.const is not None and flag.const == value]
    takers = [flag for flag in rows if flag.const is None and value is not None]
    return next(iter([*switches, *takers]), None)
