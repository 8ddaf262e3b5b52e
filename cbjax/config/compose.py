"""Composing YAML with Hydra: overrides in, the schema's dataclasses out, errors in plain words.

The only module that knows Hydra. It uses the compose API and not `hydra.main`: the same call serves
the command line and notebooks, nothing changes the working directory, and no `outputs` folder
appears.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbjax import hardware
from cbjax.config.errors import ConfigError, nearest
from cbjax.config.paths import config_dir, group_choices, module_names
from cbjax.config.schema import RootConfig

GROUPS = ("policy", "kv", "ladder", "model", "hardware", "workload", "backend", "slo")
OPEN = ("policy.", "workload.trace.options.")
Compose = Callable[[Sequence[str]], RootConfig]


@contextmanager
def composer() -> Iterator[Compose]:
    """A function from overrides to a checked config; a notebook's own Hydra is left as it was."""
    _register()
    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="cbjax"):
            yield _compose
    finally:
        GlobalHydra.instance().hydra = held


def parse(overrides: Sequence[str]) -> list[Override]:
    """Overrides as Hydra reads them.

    Raises:
        ConfigError: one is not of the form key=value.
    """
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            raise ConfigError(
                f"{text!r} is not an override: write key=value, e.g. seats=4 or policy=orca "
                f"({_first_line(error)})"
            ) from error
    return parsed


def _register() -> None:
    store = ConfigStore.instance()
    store.store("schema", node=RootConfig)
    # What has a file or a table entry of its own is chosen by its name, without YAML.
    for group, choices in _unlisted().items():
        listed = group_choices(group)
        for name, node in choices.items():
            if name not in listed:
                store.store(name, node=node, group=group)


@cache
def _unlisted() -> dict[str, dict[str, dict[str, Any]]]:
    """Choices of a group beside its YAML files: name -> settings."""
    shapes = {name: hardware.models.load(name) for name in hardware.models.names()}
    return {
        "policy": {name: {"name": name} for name in module_names("cbjax.policies")},
        "hardware": {name: {"name": name} for name in hardware.names()},
        "model": {
            name: {"source": name, "dtype": "bfloat16", "max_length": shape.max_length}
            for name, shape in shapes.items()
        },
    }


def _compose(overrides: Sequence[str]) -> RootConfig:
    parsed = parse(overrides)
    _refuse_unknown(parsed)
    # A policy's YAML need not name every knob, nor a trace's every option; whether there is such a
    # one is asked of a function's signature.
    texts = [
        f"++{text.lstrip('+')}" if override.key_or_group.startswith(OPEN) else text
        for text, override in zip(overrides, parsed, strict=True)
    ]
    try:
        return cast(RootConfig, OmegaConf.to_object(compose("config", overrides=texts)))
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_in_plain_words(error)) from error


def _refuse_unknown(parsed: Sequence[Override]) -> None:
    for override in parsed:
        key = override.key_or_group
        if key in GROUPS and isinstance(override.value(), str):
            choices = {**group_choices(key), **_unlisted().get(key, {})}
            if override.value() not in choices:
                raise ConfigError(f"{key} = {override.value()!r}: {_among(override, choices)}")
        elif key not in GROUPS and key != "experiment" and not _may_exist(key):
            value = override.get_value_element_as_str()
            raise ConfigError(f"{key} = {value}: there is no such setting; {_nearest_key(key)}")


def _among(override: Override, choices: dict[str, Any]) -> str:
    return nearest(str(override.value()), choices)


def _may_exist(key: str) -> bool:
    """Whether the schema has the key; what lies below a free mapping is checked later."""
    node: Any = RootConfig()
    for part in key.split("."):
        if isinstance(node, dict) or node is None:
            return True
        if not is_dataclass(node) or part not in {field.name for field in fields(node)}:
            return False
        node = getattr(node, part)
    return True


def _nearest_key(key: str) -> str:
    known = list(_all_keys(RootConfig()))
    leaves = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    # Half of the typos are a right name without its group.
    if key.rsplit(".", 1)[-1] in leaves:
        return f"did you mean {leaves[key.rsplit('.', 1)[-1]]}?"
    return nearest(key, known)


def _all_keys(node: Any, prefix: str = "") -> Iterator[str]:
    for field in fields(node):
        value = getattr(node, field.name)
        yield prefix + field.name
        if is_dataclass(value):
            yield from _all_keys(value, f"{prefix}{field.name}.")


def _in_plain_words(error: Exception) -> str:
    """The field and the reason out of the innermost error; Hydra's own lines name its internals."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    key = getattr(inner, "full_key", None)
    text = _first_line(inner)
    if not key:
        return f"{_first_line(error)}: {text}" if text not in str(error) else text
    wrong = re.match(r"Value '(.*)' of type '.*' could not be converted to (\w+)", text)
    if wrong:
        return f"{key} = {wrong[1]!r}: give a value of type {wrong[2].lower()}"
    known = set(_all_keys(RootConfig()))
    return f"{key}: {text}" + ("" if key in known else f"; {_nearest_key(key)}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
