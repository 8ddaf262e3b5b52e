"""The real loop under a unit clock: every iteration takes one second and nothing is computed."""

from typing import Any

from cbjax.cache import cache_dir
from cbjax.config import ConfigError, RunConfig, build_policy
from cbjax.engine import serve_with_unit_clock
from cbjax.engine.compiles import keep_compiled_programs
from cbjax.experiment.backends import Progress, Served
from cbjax.experiment.sizes import ladder_of, sizes_of
from cbjax.metrics import Recorder
from cbjax.workload import Workload


def serve(
    config: RunConfig, workload: Workload, recorder: Recorder, shared: dict[str, Any],
    progress: Progress | None,
) -> Served:
    """Serve the workload; see `cbjax.experiment.backends`."""
    for field, value in (
        ("kv.num_blocks", config.kv.blocks), ("model.max_length", config.model.max_length)
    ):
        if value is None:
            raise ConfigError(f"{field} = null: without a model nothing else tells; give a number")
    policy, max_length = build_policy(config.policy), config.model.max_length
    assert max_length is not None
    keep_compiled_programs(cache_dir() / "programs")
    try:
        serve_with_unit_clock(
            policy, workload, recorder, max_length=max_length, debug=config.debug,
            progress=progress, rungs=ladder_of(config, policy, max_length), **sizes_of(config),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Served(environment={"device": "none (unit clock)"})
