"""Figures that a study asks for by name: one file each, with a function `draw`.

`draw(rows, folder, **options)` takes the study's rows (`collect_runs`), its folder and what
`study.views.<name>` says, and returns a figure. A view may have a function `table` of the same
arguments as well, which returns what is shown below the study's own table.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.figure import Figure
from rich.console import RenderableType

View = Callable[..., Figure]


def get(name: str) -> View:
    """The `draw` function of a view.

    Raises:
        ModuleNotFoundError: there is no such file.
    """
    return importlib.import_module(f"{__name__}.{name}").draw


def tables(
    views: Mapping[str, Mapping[str, Any]], rows: pl.DataFrame, folder: Path
) -> list[RenderableType]:
    """The tables of those views that have one.

    Args:
        views: name -> options.
        rows: from `collect_runs`.
        folder: of the study.
    """
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in views}
    return [
        module.table(rows, folder, **views[name])
        for name, module in modules.items() if hasattr(module, "table")
    ]
