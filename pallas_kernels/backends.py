"""Choosing the back end of a kernel: a name is the name of a file in the kernel's folder.

A back end is a module that defines the kernel's function (same signature as the public one, less
`implementation`) and may define

* `PREFERRED_ON`: platforms ("cpu", "tpu", ...) on which it is the choice when none is named;
* `unfit(*arrays)`: the reason why it cannot serve these arguments, or None.

Adding one is adding a file; nothing else is edited. Files that are not back ends are `api`,
`shapes` and those whose names begin with an underscore.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax

NOT_BACK_ENDS = ("api", "shapes")
FALLBACK = "xla"


@functools.cache
def names(package: str) -> tuple[str, ...]:
    """Names of the back ends in the folder of `package`, sorted."""
    found = (m.name for m in pkgutil.iter_modules(importlib.import_module(package).__path__))
    return tuple(sorted(n for n in found if n not in NOT_BACK_ENDS and not n.startswith("_")))


@functools.cache
def load(package: str, name: str) -> ModuleType:
    """Import one back end."""
    return importlib.import_module(f"{package}.{name}")


def choose(package: str, function: str, implementation: str | None, *arrays: Any) -> Callable:
    """The function of the back end to use for `arrays`.

    Args:
        package: the kernel's package, e.g. "pallas_kernels.kv_write".
        function: name of the kernel's function in each back end.
        implementation: name of a back end, or None for the best that fits this platform.
        arrays: what the back end's `unfit` looks at (shapes and dtypes only).

    Raises:
        ValueError: no such back end, or it cannot serve these arguments (all reasons given).
    """
    known = names(package)
    if implementation is not None and implementation not in known:
        raise ValueError(
            f"implementation: {implementation!r} is unknown; use None or one of {known}"
        )
    candidates = (implementation,) if implementation is not None else _by_platform(package)
    reasons = []
    for name in candidates:
        backend = load(package, name)
        reason = backend.unfit(*arrays) if hasattr(backend, "unfit") else None
        if reason is None:
            return getattr(backend, function)
        reasons.append(f"{name}: {reason}")
    raise ValueError(
        f"implementation: {implementation!r} cannot serve these arguments ({'; '.join(reasons)}); "
        f"back ends are {known}"
    )


def _by_platform(package: str) -> tuple[str, ...]:
    platform = jax.default_backend()
    preferred = (n for n in names(package) if n != FALLBACK)
    fitting = [n for n in preferred if platform in getattr(load(package, n), "PREFERRED_ON", ())]
    return (*fitting, FALLBACK)
