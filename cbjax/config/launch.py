"""Giving work to a Hydra launcher: an existing plugin brings calls to other processes or machines.

What to do is settled before: a call gets a number and nothing else, so that nothing is composed a
second time on the way, where a sweep inside an experiment's file would be lost.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import OmegaConf

from cbjax.config.compose import composer


def launch(
    launcher: Mapping[str, Any], task: Callable[[Any], None], count: int, folder: Path
) -> None:
    """Call `task` with every number below `count`, as a config's field `cell`, by a launcher.

    Args:
        launcher: settings of the plugin, see `Experiment.launcher`.
        task: can be pickled; keeps its results and its errors itself.
        count: of calls, at least one.
        folder: for the launcher's own files and logs.

    Raises:
        Exception: whatever the launcher does if it loses a process.
    """
    ConfigStore.instance().store("launch", {"cell": 0})
    with composer():
        config = compose("launch", return_hydra_config=True, overrides=[
            "hydra.mode=MULTIRUN", "hydra.output_subdir=null", "hydra.job.chdir=false",
            "hydra/job_logging=none", "hydra/hydra_logging=none", f"hydra.sweep.dir='{folder}'",
        ])
        config.hydra.launcher = OmegaConf.create(dict(launcher))
        context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks())
        plugin = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )
        plugin.launch([[f"cell={number}"] for number in range(count)], initial_job_idx=0)
