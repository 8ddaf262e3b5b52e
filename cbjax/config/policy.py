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


def complete_policy(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's name with all its knobs, given ones and defaults.

    Args:
        chosen: `name` and any of its knobs.

    Raises:
        ConfigError: an unknown policy or knob, or a value of the wrong type.
    """
    name = chosen.get("name", "")
    known = knobs_of(name)
    given = {knob: value for knob, value in chosen.items() if knob != "name"}
    for knob, value in given.items():
        if knob not in known:
            remedy = f"{name} has no such knob; {nearest(str(knob), known)}"
            raise impossible(f"policy.{knob}", value, remedy)
        _check_type(name, knob, value)
    return {"name": name, **known, **given}


def knob_for(policy: str, alias: str) -> str | None:
    """What a policy calls its "seats" or its "budget"; None where it has no such knob."""
    # Only a built policy tells; its defaults always build.
    return getattr(policies.get(policy)(), alias)


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
