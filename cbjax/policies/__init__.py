"""Policies: one file per system, a plain function with that system's own knobs and defaults.

`cbjax.policies.<name>` is the function `<name>` of the file `cbjax/policies/<name>.py`. A new
policy is a new file: nothing is registered. A file whose name starts with `_` is a part of others.
`from_flags` and `to_flags` read and write the command lines of the systems' own servers.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cbjax.core.policy import Policy

if TYPE_CHECKING:
    from cbjax.policies._flags import from_flags as from_flags
    from cbjax.policies._flags import to_flags as to_flags

names = sorted(
    module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
)
# The functions take the place of the modules of the same name.
globals().update(
    {name: getattr(importlib.import_module(f"{__name__}.{name}"), name) for name in names}
)


def get(name: str) -> Callable[..., Policy]:
    """The function that builds the policy `name`.

    Raises:
        ValueError: there is no such policy.
    """
    if name not in names:
        raise ValueError(f"policy = {name!r}: choose one of {names}")
    return globals()[name]


def sized(name: str, seats: int, budget: int, **knobs: Any) -> Policy:
    """A policy with so many seats and such a token budget, whatever its knobs for them are called.

    Args:
        name: of the policy; one without a budget has none.
        knobs: its further knobs, by its own names.

    Raises:
        ValueError: there is no such policy, or it refuses a value.
    """
    build = get(name)
    plain = build()
    own = {plain.seats: seats, plain.budget: budget}
    return build(**{knob: value for knob, value in own.items() if knob} | knobs)


def __getattr__(name: str) -> Any:
    if name in ("from_flags", "to_flags"):
        # On first use: the tables ask for policies, which must all be there by then.
        return getattr(importlib.import_module(f"{__name__}._flags"), name)
    raise AttributeError(f"there is no policy {name!r}: choose one of {names}")
