"""Published traces: one file per format, found by its name.

A format is a module with `DOWNLOAD`, a sentence on where such files come from, and a function
`read(path, wanted, **options)` that returns a `Trace` whose `bad_rows` say what was left out. The
arguments behind `wanted` are the format's own options, in Python and in configs alike.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from cbjax.workload.bad_rows import OnBadRow, require_choice, settle
from cbjax.workload.checks import require
from cbjax.workload.trace import Trace

names = sorted(
    module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
)


@dataclass(frozen=True)
class Wanted:
    """What of a trace will be used: readers may leave out the rest, and generators need it.

    Attributes:
        start_s: seconds from the first request of the trace.
        duration_s: None: to its end.
        limit: most rows of the file to look at.
        seed: of what a format draws.
    """

    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    seed: int = 0


def get(name: str) -> ModuleType:
    """The module of a format.

    Raises:
        ValueError: there is no such format.
    """
    close = get_close_matches(name, names, n=1)
    require(name in names, "format", name,
            (f"did you mean {close[0]}? " if close else "") + f"use one of {', '.join(names)}")
    return importlib.import_module(f"{__name__}.{name}")


def options_of(name: str) -> dict[str, Any]:
    """A format's own options and their defaults."""
    parameters = list(inspect.signature(get(name).read).parameters.values())[2:]
    return {parameter.name: parameter.default for parameter in parameters}


def require_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuse options that the format does not have.

    Raises:
        ValueError: naming the first of them.
    """
    known = options_of(name)
    for option, value in given.items():
        remedy = f"use one of {', '.join(known)}" if known else "leave it out, there are none"
        require(option in known, f"options.{option}", value,
                f"format {name} has no such option; {remedy}")


def read_trace(
    path: str | Path | None, format: str, *, on_bad_row: OnBadRow = "refuse",
    start_s: float = 0.0, duration_s: float | None = None, limit: int | None = None,
    seed: int = 0, **options: Any,
) -> Trace:
    """Read a trace of a published format, on its own clock: it begins at 0.

    Args:
        path: the file; a folder of clients for `servegen`. CSV and JSONL may be gzipped.
        format: one of `names`.
        on_bad_row: `refuse` raises and shows rows that hold no request, `skip` warns and leaves
            them out.
        start_s, duration_s: what will be cut out of it (`cbjax.workload.cut`); a reader need not
            give more than that.
        limit: most rows of the file to look at; None: all.
        seed: of formats that draw.
        options: the format's own.

    Raises:
        FileNotFoundError: no file there; the text says where such files come from.
        ValueError: bad rows under `refuse`, no requests at all, or an impossible argument.
    """
    module = get(format)
    require_options(format, options)
    require_choice(on_bad_row)
    require(limit is None or limit >= 1, "limit", limit, "use at least 1, or leave it out")
    if path is None or not Path(path).exists():
        missing = "no file is named" if path is None else "there is no such file"
        shown = None if path is None else str(path)
        raise FileNotFoundError(f"path = {shown!r}: {missing}; {module.DOWNLOAD}")
    trace = module.read(Path(path), Wanted(start_s, duration_s, limit, seed), **options)
    settle(path, trace.bad_rows, on_bad_row)
    require(len(trace), "path", str(path), "it holds no requests; give one that does")
    return trace
