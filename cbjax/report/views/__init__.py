"""Figures that a study asks for by name: one file each, with a function `draw`.

`draw(rows, folder, **options)` takes the study's rows (`collect_runs`), its folder and what
`study.views.<name>` says, and returns a figure.
"""

import importlib
from collections.abc import Callable

from matplotlib.figure import Figure

View = Callable[..., Figure]


def get(name: str) -> View:
    """The `draw` function of a view.

    Raises:
        ModuleNotFoundError: there is no such file.
    """
    return importlib.import_module(f"{__name__}.{name}").draw
