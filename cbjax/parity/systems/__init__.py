"""One file per recorded system: how its recordings are read. A new system is a new file."""

import importlib
import pkgutil
from typing import Any

from cbjax.parity.traces import Format

names = sorted(module.name for module in pkgutil.iter_modules(__path__))


def format_of(recorded: dict[str, Any]) -> Format:
    """The format of a recorded object.

    Raises:
        ValueError: no file here reads what this system recorded.
    """
    forms = [importlib.import_module(f"{__name__}.{name}").FORMAT for name in names]
    for form in forms:
        if form.system == recorded.get("system"):
            return form
    raise ValueError(
        f"system = {recorded.get('system')!r}: recordings of {[form.system for form in forms]} can "
        "be read"
    )
