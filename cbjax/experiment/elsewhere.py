"""Cells in other processes: one of its own for each, or wherever a launcher brings them."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cbjax.config import Cell
from cbjax.config.launch import launch
from cbjax.experiment.cell import CellFailed, keep_failure, run_cell, settings
from cbjax.results import Study

LAUNCHER_FILES = "launch"  # folder of a study; kept where a cell failed, for the logs in it


def isolated(cell: Cell, study: Study) -> None:
    """Run a cell in a process of its own: nothing is compiled, cached or held from before.

    Raises:
        CellFailed: it ended with an error, or its process was killed.
    """
    # By pipe and not by multiprocessing, which would run the user's script again in the process.
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=pickle.dumps((cell, study)),
        env={**os.environ, "PYTHONPATH": paths},
    )
    error = study.find_failure(settings(cell), cell.config.seed)
    if error is not None:
        raise CellFailed(error)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise CellFailed(f"its process was ended by {name}; by SIGKILL if memory ran out")
    if done.returncode:
        raise CellFailed(f"its process ended with status {done.returncode}")


def launched(
    cells: Sequence[Cell], study: Study, launcher: Mapping[str, Any], isolate: bool
) -> None:
    """Run cells through a Hydra launcher; every one leaves its run or its error in the study.

    Raises:
        Exception: whatever the launcher does if it loses a process.
    """
    folder = study.folder.resolve() / LAUNCHER_FILES
    task = Task(tuple(cells), _absolute(study), isolate)
    launch(launcher, task, len(cells), folder)


@dataclass(frozen=True)
class Task:
    """What a launched process does: the cell whose number it is given."""

    cells: tuple[Cell, ...]
    study: Study
    isolate: bool

    def __call__(self, config: Any) -> None:
        """Run cell `config.cell`; an error is kept and not raised, since launchers stop at one."""
        cell = self.cells[config.cell]
        try:
            if self.isolate:
                isolated(cell, self.study)
            else:
                run_cell(cell, self.study, {}, None)
        except Exception as error:
            keep_failure(cell, self.study, error)


def _absolute(study: Study) -> Study:
    """The study as a process in another folder finds it."""
    return Study(
        study.path.resolve(), study.folder.resolve(), study.experiment, study.config, study.seed,
        study.swept, study.finished, adopts=False,
    )


def main() -> None:
    """What the process of an isolated cell does; cell and study come in by pipe."""
    cell, study = pickle.load(sys.stdin.buffer)
    try:
        run_cell(cell, study, {}, None)
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        keep_failure(cell, study, error)
