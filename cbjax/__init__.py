"""Continuous batching, compiled: scheduler, paged KV cache and model step as pure functions in JAX.

The public names are resolved on first use, so that `import cbjax` and the command line's help stay
quick: JAX is imported only when something needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbjax import policies
    from cbjax.config import load_config
    from cbjax.core.explain import explain
    from cbjax.engine import Engine
    from cbjax.experiment import run_experiment
    from cbjax.results import collect_runs

__version__ = "0.1.0"

_HOME = {
    "Engine": "cbjax.engine",
    "collect_runs": "cbjax.results",
    "explain": "cbjax.core.explain",
    "load_config": "cbjax.config",
    "run_experiment": "cbjax.experiment",
}

__all__ = ["Engine", "collect_runs", "explain", "load_config", "policies", "run_experiment"]


def __getattr__(name: str) -> Any:
    if name == "policies":
        return import_module("cbjax.policies")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"cbjax has no {name!r}; its public names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
