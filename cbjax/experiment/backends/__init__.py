"""What can serve a workload: one file per backend, found by its name.

A backend is a module with one function, `serve(config, workload, recorder, shared, progress)`,
that returns a `Served`. `shared` is a dictionary that lives as long as the study: what several
cells can use, such as loaded weights, is kept there. It may have `prepare` as well, see below.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cbjax.config import ConfigError, RunConfig
from cbjax.config.errors import nearest
from cbjax.config.paths import module_names
from cbjax.metrics import Recorder, Tables
from cbjax.workload import Workload

Progress = Callable[[str, int, int], None]
"""`(label, done, total)`."""


@dataclass(frozen=True)
class Answer:
    """What a request got: its text, why it ended, and an error if it was refused."""

    request_id: int
    text: str
    finish_reason: str
    error: str | None = None


@dataclass(frozen=True)
class Served:
    """What a backend leaves behind beside the recorder's rows.

    Attributes:
        answers: in the order of the requests; none where nothing generates text.
        environment: facts for `cbjax.results.environment`.
        tables: the run's rows, if the recorder was not told of them one by one.
        itl_s: gaps between tokens, described, where no token's time is kept.
    """

    answers: Sequence[Answer] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    tables: Tables | None = None
    itl_s: Mapping[str, float | int | None] | None = None


Backend = Callable[[RunConfig, Workload, Recorder, dict[str, Any], Progress | None], Served]


def get(name: str) -> Backend:
    """The `serve` function of a backend.

    Raises:
        ConfigError: there is no such backend.
    """
    known = module_names(__name__)
    if name not in known:
        raise ConfigError(f"backend.name = {name!r}: {nearest(name, known)}")
    return importlib.import_module(f"{__name__}.{name}").serve


def prepare(configs: Sequence[RunConfig], shared: dict[str, Any]) -> int:
    """Let a backend know the cells that come, if it has a function `prepare` for it.

    Args:
        configs: of the cells.
        shared: goes to every `serve`.

    Returns:
        How many of the cells may be served at a time, on threads of this process.
    """
    names = {config.backend.name for config in configs}
    if len(names) != 1 or len(configs) == 1:
        return 1
    module = importlib.import_module(f"{__name__}.{names.pop()}")
    return module.prepare(configs, shared) if hasattr(module, "prepare") else 1
