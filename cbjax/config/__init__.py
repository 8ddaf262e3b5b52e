"""The config edge: YAML and overrides in, checked dataclasses out."""

from cbjax.config.errors import ConfigError
from cbjax.config.load import Cell, Experiment, experiments, load_config
from cbjax.config.policy import build_policy
from cbjax.config.schema import RunConfig, StudyConfig

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
