"""Command lines of servers, read into policies and written from them.

One file per system; a file whose name starts with `_` is a part of the others. A new system is a
new file with a `TABLE`, nothing is registered.
"""

from cbjax.policies._flags._memory import Memory
from cbjax.policies._flags._reader import from_flags
from cbjax.policies._flags._server import Server
from cbjax.policies._flags._table import Flag, Settings, Table, tables
from cbjax.policies._flags._values import FlagsError
from cbjax.policies._flags._writer import to_flags

__all__ = [
    "Flag", "FlagsError", "Memory", "Server", "Settings", "Table", "from_flags", "tables",
    "to_flags",
]
