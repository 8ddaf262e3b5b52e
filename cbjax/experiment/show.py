"""What a finished study tells in the terminal: timelines, answers, the table, the files."""

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import polars as pl

from cbjax.experiment.answers import Dialogue, one_of_each_class, read_answers
from cbjax.experiment.command_lines import command_lines
from cbjax.experiment.pace import in_words
from cbjax.experiment.study import StudyResult
from cbjax.report import (
    ascii_timeline,
    capacity_table,
    conditions,
    estimates_table,
    grid_axes,
    paired_differences,
    paired_tables,
    plain_text,
    study_table,
    view_tables,
)
from cbjax.results import has_capacity, read_capacity

PROMPT_WIDTH, WIDEST = 200, 160
MOST_DIFFERENCES = 24


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
    rows = result.comparison.filter(pl.col("error").is_null())
    if has_capacity(result.folder):
        out(capacity_table(read_capacity(result.folder)))
        out(conditions(runs))
        for line in command_lines(result, shown.flags):
            out(line)
    else:
        out(study_table(rows, runs, grid_axes(rows, result.experiment.swept)))
        if _is_repeated(rows):
            for table in paired_tables(paired_differences(rows, runs), MOST_DIFFERENCES):
                out(table)
    for table in view_tables(shown.views, rows, result.folder):
        out(table)
    for file in result.figures:
        out(f"figure  {file}")
    _show_failed(result, out)
    cells, reused, failed = len(result.experiment.cells), len(result.reused), len(result.failed)
    if cells > 1:
        found = f", {reused} found finished" if reused else ""
        wrong = f", {failed} failed" if failed else ""
        out(f"cells   {cells}{found}{wrong}")
    if _is_repeated(rows):
        out(f"table   python -m cbjax.collect {result.folder} --to table.tex")
    out(f"results {result.folder}")


def _is_repeated(rows: pl.DataFrame) -> bool:
    """Whether settings ran with several seeds."""
    return rows["setting_hash"].n_unique() < len(rows)


def show_estimates(cells: pl.DataFrame, out: Callable[[Any], None]) -> None:
    """Show what `estimate_cells` found: a row per cell, and their sum."""
    out(plain_text(estimates_table(cells), width=WIDEST))
    left = cells.filter(~pl.col("finished"))
    seconds = left["seconds"]
    unknown = f" and {seconds.null_count()} cells of unknown length" if seconds.null_count() else ""
    out(
        f"{len(cells)} cells, {len(cells) - len(left)} finished before; the others take about "
        f"{in_words(float(seconds.sum()))}{unknown} one after another; nothing was started"
    )


def _show_failed(result: StudyResult, out: Callable[[Any], None]) -> None:
    for one in result.failed:
        out(f"failed  {one.label}: {one.error}")
    if result.failed:
        out(f"errors  {result.folder}/runs/*/error.json; the same command tries them again")


def _as_text(dialogue: Dialogue) -> str:
    asked = shorten(dialogue.prompt, PROMPT_WIDTH, placeholder=" ...")
    return f"\n[{dialogue.class_name}] {asked}\n> {dialogue.answer.strip()}"
