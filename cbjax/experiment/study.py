"""A study: the cells of an experiment one after another, and what they leave behind together."""

from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from cbjax.config import ConfigError, Experiment
from cbjax.experiment.backends import Progress
from cbjax.experiment.cell import settings
from cbjax.experiment.fidelity import VARIED, compare_with_engine
from cbjax.experiment.runner import Failure, Say, runner_of
from cbjax.experiment.search import RATE, search_capacity
from cbjax.results import Run, Study, collect_runs, open_study, write_capacity, write_fidelity


@dataclass(frozen=True)
class StudyResult:
    """A finished study.

    Attributes:
        experiment: what was asked.
        folder: where it lies.
        runs: in the order of the cells.
        reused: labels of the runs that were there before.
        failed: cells that ended with an error; they are tried again next time.
    """

    experiment: Experiment
    folder: Path
    runs: tuple[Run, ...]
    reused: tuple[str, ...]
    failed: tuple[Failure, ...] = ()

    @property
    def comparison(self) -> pl.DataFrame:
        """One row per run, also of those that failed, see `cbjax.collect_runs`."""
        return collect_runs(self.folder)

    @property
    def figures(self) -> list[Path]:
        """Figures and trace of the study."""
        return sorted(self.folder.glob("figures/*.png")) + sorted(
            self.folder.glob("figures/*.json")
        )


def run_experiment(
    experiment: Experiment, *, progress: Progress | None = None, say: Say | None = None
) -> StudyResult:
    """Run the cells of an experiment that are not finished yet.

    Args:
        experiment: from `cbjax.load_config`.
        progress: `(label, done, total)` while loading, compiling and serving.
        say: receives a line of text per cell.

    Returns:
        The study's folder, runs and figures; `print(result.comparison)` for its table.

    An error of a cell is kept in its row, and the others go on.

    Raises:
        Exception: the error of the first cell, if no cell came through.
        ConfigError: a setting that only the backend or the workload can judge; `dry_run`.
        FolderInUse: the same study is being run by another process.
    """
    say = say or (lambda text: None)
    if experiment.dry_run:
        raise ConfigError("dry_run = true: ask cbjax.experiment.estimate_cells what would be run")
    cells, search, fit = experiment.cells, experiment.study.search, experiment.study.fit
    if experiment.launcher and (search or fit):
        raise ConfigError(
            "launcher: study.search and study.fit run in this process, since a run depends on the "
            "ones before; leave the launcher out"
        )
    swept = experiment.swept + ([RATE] if search else []) + (list(VARIED) if fit else [])
    failed: tuple[Failure, ...] = ()
    with open_study(
        experiment.results_dir, experiment.name, study_settings(experiment),
        seed=cells[0].config.seed, swept=swept, views=experiment.study.views,
        force=experiment.force,
        about={"description": experiment.description, "command": experiment.command},
    ) as study:
        if study.finished:
            reused = [cell.label for cell in cells]
            say("finished before; force=true runs it again")
        else:
            run = runner_of(study, experiment, progress, say)
            if search is not None:
                write_capacity(study.folder, search_capacity(cells, search, run))
            elif fit is not None:
                write_fidelity(study.folder, compare_with_engine(cells, fit, run))
            else:
                run.all(cells)
            reused, failed = run.reused, run.failed
            if not study.order:
                raise next(iter(run.errors.values()))
            _draw(study, experiment)
    return StudyResult(experiment, study.folder, tuple(study.runs()), tuple(reused), failed)


def study_settings(experiment: Experiment) -> dict[str, Any]:
    """What the study's folder is named by: every setting of every cell, and what is asked."""
    shown = experiment.study
    asked = {"search": shown.search, "fit": shown.fit}
    return {
        "cells": {cell.label: settings(cell) for cell in experiment.cells},
        **{name: asdict(value) for name, value in asked.items() if value is not None},
    }


def _draw(study: Study, experiment: Experiment) -> None:
    """Figures from the files, as `python -m cbjax.report` draws them again later."""
    study.write_index()
    if experiment.study.figures == "none":
        return
    report = import_module("cbjax.report")
    report.draw_study(study.folder)
    if experiment.study.figures == "all":
        for run in study.runs():
            report.draw_runs([run], run.folder / "figures")
