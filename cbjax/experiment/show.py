"""What a finished study tells in the terminal: timelines, answers, the table, the files."""

from collections.abc import Callable
from textwrap import shorten
from typing import Any

from cbjax.experiment.answers import Dialogue, one_of_each_class, read_answers
from cbjax.experiment.command_lines import command_lines
from cbjax.experiment.study import StudyResult
from cbjax.report import (
    ascii_timeline,
    capacity_table,
    conditions,
    grid_axes,
    study_table,
    view_tables,
)
from cbjax.results import has_capacity, read_capacity

PROMPT_WIDTH = 200


def show_study(result: StudyResult, out: Callable[[Any], None]) -> None:
    """Show a study.

    Args:
        result: from `run_experiment`.
        out: prints text and tables, e.g. `rich.console.Console().print`.
    """
    shown, runs = result.experiment.study, result.runs
    if shown.timeline:
        for run in runs:
            out(f"\n{run.label}\n{ascii_timeline(run.tables, run.names)}")
    if shown.answers:
        # Greedy answers are the same under every policy; the last run's are shown.
        for dialogue in one_of_each_class(read_answers(runs[-1].folder), shown.answers):
            out(_as_text(dialogue))
    out("")
    rows = result.comparison
    if has_capacity(result.folder):
        out(capacity_table(read_capacity(result.folder)))
        out(conditions(runs))
        for line in command_lines(result, shown.flags):
            out(line)
    else:
        out(study_table(rows, runs, grid_axes(rows, result.experiment.swept)))
    for table in view_tables(shown.views, rows, result.folder):
        out(table)
    for file in result.figures:
        out(f"figure  {file}")
    out(f"results {result.folder}")


def _as_text(dialogue: Dialogue) -> str:
    asked = shorten(dialogue.prompt, PROMPT_WIDTH, placeholder=" ...")
    return f"\n[{dialogue.class_name}] {asked}\n> {dialogue.answer.strip()}"
