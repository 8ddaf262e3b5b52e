"""`python -m cbjax.report <folder>`: redraw a run or a study from its files."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cbjax.report.files import NotDrawable, redraw


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and where the figures are; exit status 2 for a folder that is neither."""
    parser = argparse.ArgumentParser(prog="python -m cbjax.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="results/<experiment>/<study hash>, or a run")
    folder = parser.parse_args(arguments).folder
    try:
        table, written = redraw(folder)
    except NotDrawable as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    console.print(table)
    for path in written:
        console.print(str(path), soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
