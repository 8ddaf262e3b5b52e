"""`python -m cbjax.parity FILE...`: replay recorded decisions and say where ours differ."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cbjax.core.reasons import LimitedBy
from cbjax.parity.systems import format_of
from cbjax.parity.traces import Difference, NotRead, Trace, compare, load


def main(arguments: list[str] | None = None) -> int:
    """Replay every trace of every file; 0 if all were read and none differs."""
    parser = argparse.ArgumentParser(prog="python -m cbjax.parity", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="*.jsonl.gz")
    options = parser.parse_args(arguments)
    console = Console()
    count: Counter[str] = Counter()
    not_read: Counter[str] = Counter()
    for path in options.files:
        if not path.is_file():
            parser.error(f"{path}: no such file")
        try:
            recorded = list(load(path))
            for one in track(recorded, str(path.name), console=console, transient=True):
                form = format_of(one)
                try:
                    trace = form.read(one)
                except NotRead as reason:
                    not_read[f"{path.name}: {reason}"] += 1
                    continue
                difference = compare(trace, form)
                count["marked" if trace.marked else "differ" if difference else "equal"] += 1
                if difference and not trace.marked:
                    console.print(explain(trace, difference), highlight=False, markup=False)
        except (ValueError, OSError) as error:
            parser.error(str(error))
    for why, times in not_read.items():
        console.print(f"{times} not read, {why}", highlight=False, markup=False)
    print(f"{count['equal']} equal, {count['differ']} differ, {count['marked']} marked")
    return 1 if count["differ"] or not_read else 0


def explain(trace: Trace, difference: Difference) -> str:
    """Both sides of the first differing decision, in a few lines."""
    lines = [f"{trace.name}: iteration {difference.iteration} differs in {difference.names}"]
    for side, fields in (("ours", difference.ours), ("recorded", difference.theirs)):
        lines.append(f"  {side}: " + ("had ended" if fields is None else _shown(fields)))
    if difference.reason:
        lines.append(f"  ours: {LimitedBy[difference.reason.upper()].sentence}")
    return "\n".join(lines)


def _shown(fields: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in fields.items() if value not in ([], {}))


if __name__ == "__main__":
    sys.exit(main())
