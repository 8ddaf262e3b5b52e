"""Policies at the config edge: names become functions, signatures become schemas.

A policy's file is all there is to it: its knobs, their order and their defaults are read from the
signature of its function, so a new policy can be configured without an entry anywhere.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from cbjax import policies
from cbjax.config.errors import ConfigError, impossible, nearest
from cbjax.core.policy import Policy

_ALIASES = ("seats", "budget")


def knobs_of(name: str) -> dict[str, Any]:
    """The knobs of a policy and their defaults, in order.

    Raises:
        ConfigError: there is no such policy.
    """
    if name not in policies.names:
        raise impossible("policy.name", name, nearest(str(name), policies.names))
    return {
        knob: parameter.default
        for knob, parameter in inspect.signature(policies.get(name)).parameters.items()
    }


def complete_policy(
    chosen: Mapping[str, Any], seats: int | None = None, budget: int | None = None
) -> dict[str, Any]:
    """A policy's name with all its knobs: given ones, aliases, defaults.

    Args:
        chosen: `name` and any of its knobs.
        seats, budget: set the knob that stands for it, if the policy has one.

    Raises:
        ConfigError: an unknown policy or knob, or a value the policy refuses.
    """
    name = chosen.get("name", "")
    known = knobs_of(name)
    for knob in chosen:
        if knob != "name" and knob not in known:
            remedy = f"{name} has no such knob; {nearest(str(knob), known)}"
            raise impossible(f"policy.{knob}", chosen[knob], remedy)
        if knob != "name":
            _check_type(name, str(knob), chosen[knob])
    knobs = known | {knob: value for knob, value in chosen.items() if knob != "name"}
    # The aliases are known only to a built policy; its defaults always build.
    plain = policies.get(name)()
    for alias, value in zip(_ALIASES, (seats, budget), strict=True):
        knob = getattr(plain, alias)
        if value is not None and knob is not None:
            knobs[knob] = value
    build_policy({"name": name, **knobs})
    return {"name": name, **knobs}


def _check_type(policy: str, knob: str, value: Any) -> None:
    """A policy checks ranges; that a word is not given for a number is checked here."""
    wanted = inspect.signature(policies.get(policy)).parameters[knob].annotation
    allowed = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}.get(wanted)
    if allowed is None:
        return
    if not isinstance(value, allowed) or (isinstance(value, bool) and wanted is not bool):
        raise impossible(f"policy.{knob}", value, f"give a value of type {wanted.__name__}")


def build_policy(chosen: Mapping[str, Any]) -> Policy:
    """The policy of a completed choice.

    Raises:
        ConfigError: the policy refuses a value.
    """
    knobs = {knob: value for knob, value in chosen.items() if knob != "name"}
    try:
        return policies.get(chosen["name"])(**knobs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"policy.{error}") from error
