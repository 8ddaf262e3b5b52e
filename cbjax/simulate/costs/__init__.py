"""Cost models: how long an iteration takes. One file each, found by its name.

`cbjax.simulate.costs.<name>` is the function `<name>` of the file of that name. A cost is a value:
its numbers are pytree leaves, so one compiled program serves them all, and its one method is
`seconds(work)`, float32 of the shape of the fields of `work` (one number per iteration asked for).
A new cost model is a new file; nothing is registered.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

names = sorted(
    module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
)
# The functions take the place of the modules of the same name.
globals().update(
    {name: getattr(importlib.import_module(f"{__name__}.{name}"), name) for name in names}
)


def get(name: str) -> Callable[..., Any]:
    """The function that builds the cost model `name`.

    Raises:
        ValueError: there is no such cost model.
    """
    if name not in names:
        raise ValueError(f"cost = {name!r}: choose one of {names}")
    return globals()[name]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"there is no cost model {name!r}: choose one of {names}")
