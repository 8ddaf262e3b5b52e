"""Averages over seeds as tables: for the terminal, for Markdown and for LaTeX."""

import re
from collections.abc import Iterator

import polars as pl
from rich import box
from rich.table import Table

from cbjax.report.format import ABSENT, metric_title, number, setting_title

LOW, HIGH, SEEDS = ".low", ".high", "seeds"
CAPTION = "mean and 95 % confidence interval over the seeds (Student's t)"
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def averages_table(averages: pl.DataFrame, title: str = "") -> Table:
    """A row per setting, for the terminal.

    Args:
        averages: from `cbjax.results.average_seeds`.
        title: above the table.
    """
    table = Table(title=title or None, box=box.SIMPLE_HEAD, caption=_caption(averages))
    header, *lines = _cells(averages)
    for name in header:
        table.add_column(name, justify="left" if name in ("variant", "policy") else "right")
    for line in lines:
        table.add_row(*line)
    return table


def markdown_table(averages: pl.DataFrame) -> str:
    """The table in Markdown; `averages` from `cbjax.results.average_seeds`."""
    header, *lines = [[cell.replace("|", "\\|") for cell in row] for row in _cells(averages)]
    rows = [header, ["---"] * len(header), *lines]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    caption = _caption(averages)
    return text + (f"\n\n{caption}" if caption else "") + "\n"


def latex_table(averages: pl.DataFrame) -> str:
    """The table in LaTeX, for the package booktabs; `averages` as in `markdown_table`."""
    header, *lines = [[_latex(cell) for cell in row] for row in _cells(averages)]
    rows = [f"  {' & '.join(row)} \\\\" for row in lines]
    caption = _caption(averages)
    return "\n".join([
        *([f"% {caption}"] if caption else []),
        f"\\begin{{tabular}}{{{'l' * len(_settings(averages))}"
        f"{'r' * (len(header) - len(_settings(averages)))}}}",
        "  \\toprule", f"  {' & '.join(header)} \\\\", "  \\midrule", *rows, "  \\bottomrule",
        "\\end{tabular}", "",
    ])


def _cells(averages: pl.DataFrame) -> Iterator[list[str]]:
    """The header, then the texts of every row; a column that is the same everywhere is left out."""
    settings = _settings(averages)
    metrics = [name.removesuffix(LOW) for name in averages.columns if name.endswith(LOW)]
    yield [setting_title(name) for name in settings] + [metric_title(name) for name in metrics]
    for row in averages.iter_rows(named=True):
        values = [ABSENT if row[name] is None else str(row[name]) for name in settings]
        for name in metrics:
            text = number(row[name], name)
            if row[name + LOW] is not None:
                text += f" ± {number((row[name + HIGH] - row[name + LOW]) / 2, name)}"
            values.append(text)
        yield values


def _settings(averages: pl.DataFrame) -> list[str]:
    """Columns that name the rows."""
    numbers = {name.removesuffix(end) for name in averages.columns for end in (LOW, HIGH)
               if name.endswith(end)}
    named = [
        name for name in averages.columns
        if name not in numbers and not name.endswith((LOW, HIGH)) and name != SEEDS
    ]
    told = [name for name in named if averages[name].n_unique() > 1] or named[:1]
    # A variant that is named by its policy needs no second column for it.
    if "variant" in told and "policy" in told:
        same = averages.select("variant", "policy").n_unique() == averages["variant"].n_unique()
        told = [name for name in told if name != "policy" or not same]
    return told


def _caption(averages: pl.DataFrame) -> str | None:
    counts = averages[SEEDS].to_list()
    if max(counts, default=0) < 2:
        return None
    least, most = min(counts), max(counts)
    return f"{CAPTION}; {most if least == most else f'{least} to {most}'} seeds"


def _latex(text: str) -> str:
    text = re.sub(r"[\\~^]", lambda found: _SPECIAL[found[0]], text)
    text = re.sub(r"(?<!\\textbackslash)([&%$#_])", r"\\\1", text)
    return text.replace("±", r"$\pm$").replace(ABSENT, "--")
