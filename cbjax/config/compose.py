"""Composing YAML with Hydra: overrides in, the schema's dataclasses out, errors in plain words.

The only module that knows Hydra. It uses the compose API and not `hydra.main`: the same call serves
the command line and notebooks, nothing changes the working directory, and no `outputs` folder
appears.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache, partial
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cbjax import hardware
from cbjax.config.errors import ConfigError, nearest
from cbjax.config.paths import config_dir, group_choices, module_names
from cbjax.config.schema import RootConfig

GROUPS = ("policy", "kv", "ladder", "model", "hardware", "workload", "backend", "slo", "launcher")
# What Hydra's launchers are chosen and set by.
OF_HYDRA = ("hydra/launcher", "hydra.launcher.")
OPEN = ("policy.", "workload.trace.options.")
Compose = Callable[[Sequence[str]], RootConfig]


@contextmanager
def composer() -> Iterator[Compose]:
    """A function from overrides to a checked config; a notebook's own Hydra is left as it was.

    Hydra needs a good part of a second for a composition. The cells of a grid differ in numbers
    mostly, so each choice of groups is composed once, and what else differs is set on a copy.
    """
    _register()
    composed: dict[tuple[str, ...], DictConfig] = {}
    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="cbjax"):
            yield partial(_compose, composed)
    finally:
        GlobalHydra.instance().hydra = held


def hydra_settings(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an experiment says to Hydra: settings of a launcher, and axes for its sweeper.

    Called within `composer`. The launcher is empty where none is chosen, that is Hydra's basic one.
    """
    node = compose("config", overrides=_spelled_out(overrides), return_hydra_config=True).hydra
    launcher = cast(dict[str, Any], OmegaConf.to_container(node.launcher, resolve=False))
    basic = launcher["_target_"].endswith(".BasicLauncher")
    return {} if basic else launcher, dict(node.sweeper.params or {})


def parse(overrides: Sequence[str]) -> list[Override]:
    """Overrides as Hydra reads them.

    Raises:
        ConfigError: one is not of the form key=value.
    """
    return [_parse(text) for text in overrides]


@lru_cache(4096)  # the cells of a grid have most of their overrides in common
def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            f"{text!r} is not an override: write key=value, e.g. seats=4 or policy=orca "
            f"({_first_line(error)})"
        ) from error


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


def _compose(
    composed: dict[tuple[str, ...], DictConfig], overrides: Sequence[str]
) -> RootConfig:
    _refuse_unknown(parse(overrides))
    texts = _spelled_out(overrides)
    parsed = parse(texts)
    values = [one for one in parsed if _is_plain_value(one)]
    choices = tuple(
        text for text, one in zip(texts, parsed, strict=True) if one not in values
    )
    try:
        if choices not in composed:
            composed[choices] = compose("config", overrides=list(choices))
        config = deepcopy(composed[choices])
        for one in values:
            OmegaConf.update(
                config, one.key_or_group, one.value(), merge=True, force_add=one.is_force_add()
            )
        return cast(RootConfig, OmegaConf.to_object(config))
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        missing = re.search(r"hydra/launcher/(\w+)|hydra/launcher: (\w+)", str(error))
        if missing:
            raise ConfigError(
                f"launcher = {missing[1] or missing[2]!r}: Hydra knows no such launcher; its "
                'plugins come with pip install "cbjax[launchers]"'
            ) from error
        raise ConfigError(_in_plain_words(error)) from error


def _spelled_out(overrides: Sequence[str]) -> list[str]:
    # A policy's YAML need not name every knob, nor a trace's every option; whether there is such a
    # one is asked of a function's signature. A launcher's options are its library's.
    free = (*OPEN, OF_HYDRA[1])
    return [
        f"++{text.lstrip('+')}" if override.key_or_group.startswith(free) else text
        for text, override in zip(overrides, parse(overrides), strict=True)
    ]


def _is_plain_value(override: Override) -> bool:
    """Whether it sets a value of the schema, and chooses, adds and deletes nothing."""
    key = override.key_or_group
    if key in GROUPS or key.startswith("hydra"):
        return False
    return not (override.is_add() or override.is_delete() or override.is_sweep_override())


def _refuse_unknown(parsed: Sequence[Override]) -> None:
    for override in parsed:
        key = override.key_or_group
        if key in GROUPS and isinstance(override.value(), str):
            choices = {**group_choices(key), **_unlisted().get(key, {})}
            if override.value() not in choices:
                raise ConfigError(f"{key} = {override.value()!r}: {_among(override, choices)}")
        elif key.startswith("hydra"):
            if not key.startswith(OF_HYDRA):
                raise ConfigError(
                    f"{override.input_line}: of Hydra's own settings only the launcher's count "
                    "here (hydra/launcher=joblib, hydra.launcher.n_jobs=4); where results go is "
                    "results_dir"
                )
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
