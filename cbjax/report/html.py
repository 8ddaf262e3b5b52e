"""A run or a study as one HTML file that needs nothing else: no network, no other file.

What was run, the same tables and figures as elsewhere, and the iterations to zoom into.
"""

import inspect
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from rich.console import Group, RenderableType
from rich.table import Table

from cbjax import __version__
from cbjax.report.format import setting_title
from cbjax.report.zoom import zoomable
from cbjax.results import Run, flatten

REPORT = "report.html"
MOST_NAMED = 16


def write_report(
    folder: Path,
    *,
    runs: Sequence[Run],
    table: RenderableType,
    figures: Mapping[Path, Callable[..., Any]],
    index: Mapping[str, Any],
    differing: Mapping[str, Sequence[str]],
    failed: Mapping[str, str],
) -> Path:
    """Write `report.html`; parts without data are left out.

    Args:
        folder: of the run or the study.
        runs: at least one.
        table: everything that is shown as a table or as text.
        figures: image (PNG) -> what drew it, whose file says in its first line what is seen.
        index: of the study; {} for a single run.
        differing: label -> settings outside of the sweep in which a run differs from the others.
        failed: label -> why a cell of the study has no run.
    """
    environment = Environment(
        loader=PackageLoader("cbjax.report"), autoescape=select_autoescape(),
        trim_blocks=True, lstrip_blocks=True,
    )
    labels = [run.label for run in runs]
    page = environment.get_template("report.html").render(
        title=index.get("experiment") or labels[0],
        index=index,
        labels=labels,
        version=__version__,
        settings=_same_and_different([flatten(run.config) for run in runs], setting_title),
        surroundings=_same_and_different([flatten(run.environment) for run in runs], str),
        differing=differing,
        failed=failed,
        blocks=list(_blocks(table)),
        figures=[_figure(path, draw, labels) for path, draw in figures.items()],
        timelines=zoomable(runs),
        files=sorted(str(path.relative_to(folder)) for path in folder.rglob("*")
                     if path.is_file() and path.name != REPORT),
    )
    path = folder / REPORT
    path.write_text(page, encoding="utf-8")
    return path


def _same_and_different(
    settings: Sequence[Mapping[str, Any]], title: Callable[[str], str]
) -> dict[str, Any]:
    """What all runs have in common, and a row per run of what differs between them."""
    names = list(dict.fromkeys(name for one in settings for name in one))
    differ = [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]
    first = settings[0]
    return {
        "same": {title(name): _text(first.get(name)) for name in names if name not in differ},
        "columns": [title(name) for name in differ],
        "rows": [[_text(one.get(name)) for name in differ] for one in settings],
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "–" if value is None else json.dumps(value)


def _blocks(shown: RenderableType) -> Iterator[dict[str, Any]]:
    """The tables and texts that a terminal would be shown, in their order."""
    if isinstance(shown, Group):
        for part in shown.renderables:
            yield from _blocks(part)
    elif isinstance(shown, Table):
        yield {
            "title": shown.title, "note": shown.caption,
            "columns": [(str(one.header), one.justify) for one in shown.columns],
            "rows": list(zip(*(map(str, one.cells) for one in shown.columns), strict=True)),
        }
    else:
        yield {"text": str(shown)}


def _figure(path: Path, draw: Callable[..., Any], labels: Sequence[str]) -> dict[str, str]:
    module = inspect.getmodule(draw)
    says = (inspect.getdoc(module) or path.stem).splitlines()[0]
    shown = ", ".join(labels[:MOST_NAMED]) + (", …" if len(labels) > MOST_NAMED else "")
    return {
        "name": path.stem, "caption": says, "alt": f"{says} Shown: {shown}.",
        "source": "data:image/png;base64," + b64encode(path.read_bytes()).decode(),
    }
