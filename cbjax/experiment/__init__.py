"""Experiments: cells of a study through a backend into results."""

from cbjax.experiment.study import StudyResult, run_experiment

__all__ = ["StudyResult", "run_experiment"]
