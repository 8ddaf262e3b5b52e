"""Running the cells of one study: each once, finished ones are found again."""

from collections.abc import Callable
from typing import Any

from cbjax.config import Cell
from cbjax.experiment.backends import Progress
from cbjax.experiment.cell import run_cell, settings
from cbjax.results import Run, Study

Say = Callable[[str], None]


class Runner:
    """Runs cells into a study; what they have in common, such as loaded weights, is kept.

    Attributes:
        reused: labels of the runs that were there before.
        say: receives a line of text per cell.
    """

    def __init__(self, study: Study, progress: Progress | None, say: Say) -> None:
        self.reused: list[str] = []
        self.say = say
        self._study, self._progress = study, progress
        self._shared: dict[str, Any] = {}

    def __call__(self, cell: Cell, place: str = "") -> Run:
        """The finished run of a cell.

        Args:
            cell: all settings.
            place: which of how many, for the line that is said.
        """
        found = self._study.find_run(settings(cell), cell.config.seed)
        if found is not None:
            self.reused.append(cell.label)
            self.say(f"{place}{cell.label}: finished before; force=true runs it again")
            return found
        self.say(f"{place}{cell.label}")
        run_cell(cell, self._study, self._shared, self._progress)
        made = self._study.find_run(settings(cell), cell.config.seed)
        assert made is not None
        return made
