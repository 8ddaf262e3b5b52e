"""Experiments: cells of a study through a backend into results."""

from cbjax.experiment.estimate import estimate_cells
from cbjax.experiment.study import StudyResult, run_experiment

__all__ = ["StudyResult", "estimate_cells", "run_experiment"]
