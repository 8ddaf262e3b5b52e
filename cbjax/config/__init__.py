"""The config edge: YAML and overrides in, checked dataclasses out.

Names are resolved on first use, because the command line's help needs the list of YAML files and
nothing of what stands behind it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cbjax.config.errors import ConfigError

if TYPE_CHECKING:
    from cbjax.config.load import Cell, Experiment, experiments, load_config
    from cbjax.config.policy import build_policy
    from cbjax.config.schema import RunConfig
    from cbjax.config.study import StudyConfig

_HOME = {
    "Cell": "load",
    "Experiment": "load",
    "RunConfig": "schema",
    "StudyConfig": "study",
    "build_policy": "policy",
    "experiments": "load",
    "load_config": "load",
}

__all__ = [
    "Cell",
    "ConfigError",
    "Experiment",
    "RunConfig",
    "StudyConfig",
    "build_policy",
    "experiments",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"cbjax.config has no {name!r}")
