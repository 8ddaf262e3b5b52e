"""`python -m cbjax.report <folder>`: redraw a run or a study from its files."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cbjax.report.files import NotDrawable, redraw
from cbjax.report.style import FORMATS, KNOWN_FORMATS


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and where the figures are; exit status 2 for a folder that is neither."""
    parser = argparse.ArgumentParser(prog="python -m cbjax.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="results/<experiment>/<study hash>, or a run")
    parser.add_argument(
        "--format", default=",".join(FORMATS), metavar="A,B", dest="formats", type=_formats,
        help=f"of the figures: {', '.join(KNOWN_FORMATS)} (default: %(default)s)",
    )
    given = parser.parse_args(arguments)
    try:
        table, written = redraw(given.folder, given.formats)
    except NotDrawable as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    console.print(table)
    for path in written:
        console.print(str(path), soft_wrap=True, highlight=False)
    return 0


def _formats(text: str) -> list[str]:
    names = [name for name in text.lower().split(",") if name]
    for name in names:
        if name not in KNOWN_FORMATS:
            raise argparse.ArgumentTypeError(f"{name!r}: use {', '.join(KNOWN_FORMATS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
