"""What the figure scripts share: a study's folder in, a file out."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cbjax.results import Run, collect_runs, read_run


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser for the folder to read and the file to write."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("study", type=Path, help="results/<experiment>/<hash>, or one run in it")
    parser.add_argument("-o", "--output", type=Path, help="a .png, .pdf or .svg file")
    return parser


def figure_arguments(figure: str, description: str | None) -> tuple[Path, Path]:
    """The folder to read and the file to write, from the command line."""
    given = parser_of(description).parse_args()
    return given.study, given.output or given.study / "figures" / f"{figure}.png"


def runs_of(folder: Path) -> Sequence[Run]:
    """The runs of a study in its order, or the single run that the folder is."""
    runs = [read_run(run) for run in collect_runs(folder)["folder"]]
    if not runs:
        raise SystemExit(f"{folder} holds no finished runs; give results/<experiment>/<hash>")
    return runs
