"""Running the cells of one study: each once, finished ones are found again, none loses another."""

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cbjax.config import Cell, Experiment
from cbjax.experiment import backends
from cbjax.experiment.backends import Progress
from cbjax.experiment.cell import CellFailed, in_one_line, keep_failure, run_cell, settings
from cbjax.experiment.elsewhere import LAUNCHER_FILES, isolated, launched
from cbjax.experiment.pace import Pace
from cbjax.results import Run, Study, identity_hash

Say = Callable[[str], None]
T = TypeVar("T")
LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class Failure:
    """A cell that ended with an error, in one line."""

    label: str
    error: str


class Runner:
    """Runs cells into a study; what they have in common, such as loaded weights, is kept.

    Attributes:
        reused: labels of the runs that were there before.
        errors: by the labels of the cells that ended with them.
        say: receives a line of text per cell.
    """

    def __init__(
        self, study: Study, progress: Progress | None, say: Say, *, isolate: bool = False,
        launcher: Mapping[str, Any] | None = None,
    ) -> None:
        self.reused: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.say = say
        self._study, self._progress = study, progress
        self._isolate, self._launcher = isolate, launcher or {}
        self._shared: dict[str, Any] = {}

    @property
    def failed(self) -> tuple[Failure, ...]:
        """The cells that ended with an error."""
        return tuple(
            Failure(label, in_one_line(error)) for label, error in self.errors.items()
        )

    def __call__(self, cell: Cell, place: str = "") -> Run:
        """The finished run of a cell.

        Args:
            cell: all settings.
            place: which of how many, for the line that is said.

        Raises:
            Exception: whatever the cell ends with.
        """
        found = self._find(cell)
        if found is not None:
            self.reused.append(cell.label)
            self.say(f"{place}{cell.label}: finished before; force=true runs it again")
            return found
        self.say(f"{place}{cell.label}")
        self._run(cell, self._progress)
        made = self._find(cell)
        assert made is not None
        return made

    def all(self, cells: Sequence[Cell]) -> None:
        """Run every cell that is not finished; an error of one is kept, and the others go on."""
        unfinished = {
            identity_hash(settings(cell), cell.config.seed): cell for cell in reversed(cells)
            if not self._study.has_run(settings(cell), cell.config.seed)
        }
        left = [cell for cell in cells if cell in unfinished.values()]
        self.reused += [cell.label for cell in cells if cell not in left]
        if self.reused:
            self.say(
                f"{len(self.reused)} of {len(cells)} cells finished before; force=true runs them "
                "again"
            )
        pace = Pace(len(cells), len(left), self._progress)
        if self._launcher and left:
            self._elsewhere(left, pace)
        else:
            self._here(left, pace)
        for cell in cells:
            if self._find(cell) is None:
                self._study.find_failure(settings(cell), cell.config.seed)

    def attempt(self, cell: Cell, work: Callable[[], T]) -> T | None:
        """The result of some work for a cell; None if it ended with an error, which is kept."""
        try:
            return work()
        except Exception as error:
            if not isinstance(error, CellFailed) or not self._failure(cell):
                keep_failure(cell, self._study, error)
            self._failure(cell)
            self.errors[cell.label] = error
            self.say(f"{cell.label} failed: {in_one_line(error)}")
            return None

    def _here(self, cells: Sequence[Cell], pace: Pace) -> None:
        """One after another, or on several threads where the backend says so."""
        threads = 1 if self._isolate else backends.prepare(
            [cell.config for cell in cells], self._shared
        )
        if threads == 1:
            for cell in cells:
                self.say(f"{pace.place()}{cell.label}{pace.told()}")
                self.attempt(cell, partial(self._run, cell, self._progress))
                pace.step()
            return
        # The first cell of every policy compiles its program, the others find it.
        first = {cell.config.policy["name"]: cell for cell in reversed(cells)}
        for some in ([*first.values()], [one for one in cells if one not in first.values()]):
            self._on_threads(some, threads, pace)

    def _on_threads(self, cells: Sequence[Cell], threads: int, pace: Pace) -> None:
        pool = ThreadPoolExecutor(threads)
        try:
            asked: dict[Future[None], Cell] = {
                pool.submit(self._run, cell, None): cell for cell in cells
            }
            for future in as_completed(asked):
                cell = asked[future]
                self.attempt(cell, future.result)
                self.say(f"{pace.place()}{cell.label}{pace.told()}")
                pace.step()
        finally:
            pool.shutdown(cancel_futures=True)

    def _elsewhere(self, cells: Sequence[Cell], pace: Pace) -> None:
        """Through the launcher; meanwhile the study's folder tells what has ended."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(cells, pace, ended))
        watcher.start()
        lost: Exception | None = None
        try:
            launched(cells, self._study, self._launcher, self._isolate)
        except Exception as error:  # it lost a process, and with it one cell or more
            lost = error
            self.say(f"the launcher ended early: {in_one_line(error)}")
        finally:
            ended.set()
            watcher.join()
        for cell in cells:
            told = self._failure(cell)
            if told is None and not self._study.has_run(settings(cell), cell.config.seed):
                told = f"its process was lost ({in_one_line(lost)})" if lost else "it never ran"
            if told is not None:
                self.attempt(cell, partial(_raise, told))
        if not self.errors:
            shutil.rmtree(self._study.folder / LAUNCHER_FILES, ignore_errors=True)

    def _watch(self, cells: Sequence[Cell], pace: Pace, ended: threading.Event) -> None:
        running = list(cells)
        while running:
            over = ended.wait(LOOK_EVERY_S)
            for cell in list(running):
                if self._study.has_run(settings(cell), cell.config.seed) or self._failure(cell):
                    self.say(f"{pace.place()}{cell.label}{pace.told()}")
                    pace.step()
                    running.remove(cell)
            if over:
                return

    def _run(self, cell: Cell, progress: Progress | None) -> None:
        if self._isolate:
            isolated(cell, self._study)
        else:
            run_cell(cell, self._study, self._shared, progress)

    def _find(self, cell: Cell) -> Run | None:
        return self._study.find_run(settings(cell), cell.config.seed, cell.label)

    def _failure(self, cell: Cell) -> str | None:
        return self._study.find_failure(settings(cell), cell.config.seed)


def runner_of(study: Study, experiment: Experiment, progress: Progress | None, say: Say) -> Runner:
    """The runner that an experiment asks for."""
    return Runner(
        study, progress, say, isolate=experiment.isolate, launcher=experiment.launcher
    )


def _raise(error: str) -> None:
    raise CellFailed(error)
