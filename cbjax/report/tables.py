"""Tables for the terminal: the same metrics side by side, one column or one row per run.

Every number has its unit in its row's name, and the lines below say under which load, SLO and
window they were measured: a comparison without these means nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cbjax.metrics import as_slo
from cbjax.report.averages import averages_table
from cbjax.report.format import ABSENT, metric_title, number, setting_title, significant
from cbjax.results import Run, average_seeds, flatten

COMPARED = (
    "output_tokens_per_s",
    "requests_per_s",
    "ttft_s.p50",
    "ttft_s.p95",
    "itl_s.p50",
    "itl_s.p95",
    "e2e_s.p50",
    "e2e_s.p95",
    "queue_s.p50",
    "queue_s.p95",
    "padding_fraction",
    "useful_token_fraction",
    "busy_fraction",
    "kv_utilisation",
    "mean_running",
    "preemptions",
    "recomputed_tokens",
    "completed",
)
MOST_COMPARED = 6
MOST_SETTINGS = 3
ONLY_IF_ANY = ("rejected", "failed")
ONLY_WITH_SLO = ("slo_attainment", "goodput_requests_per_s")
# What a table of many runs shows, in parts that fit a terminal.
PARTS = (
    ("ttft_s.p50", "ttft_s.p95", "ttft_s.p99", "itl_s.p50", "itl_s.p95", "itl_s.p99"),
    ("output_tokens_per_s", "e2e_s.p50", "e2e_s.p95", "e2e_s.p99", "queue_s.p50", "queue_s.p95"),
    ("mean_running", "preemptions", "recomputed_tokens", "kv_waste", "padding_fraction"),
)
SWEPT = ("output_tokens_per_s", "ttft_s.p95", "itl_s.p95", "padding_fraction", "preemptions")


def comparison_table(runs: Sequence[Run], title: str = "") -> RenderableType:
    """Metrics of a few runs side by side: a row per metric, a column per run.

    Args:
        runs: at least one.
        title: above the table.

    Returns:
        For `rich.print`: the table, absent values as a dash, and below it the conditions.
    """
    table = Table(title=title or None)
    table.add_column("metric (unit)", no_wrap=True)
    for run in runs:
        table.add_column(run.label, justify="right")
    flat = [flatten(run.metrics) for run in runs]
    metrics = list(COMPARED)
    metrics += [name for name in ONLY_IF_ANY if any(values.get(name) for values in flat)]
    metrics += ONLY_WITH_SLO if any(run.summary["slo"] for run in runs) else ()
    for metric in metrics:
        cells = [number(values.get(metric), metric) for values in flat]
        if any(cell != ABSENT for cell in cells):
            table.add_row(metric_title(metric), *cells)
    return Group(table, Text(conditions(runs)))


def study_table(
    rows: pl.DataFrame, runs: Sequence[Run], axes: Sequence[str], title: str = ""
) -> RenderableType:
    """The table of a study: a column per run if they are few, else a row per run.

    Args:
        rows: from `collect_runs`.
        runs: the same runs.
        axes: settings that were swept. Many runs of several seeds become averages. Up to three
            settings that every run has, and that tell the runs apart, name the rows; otherwise the
            runs are variants, known by their labels, and the table has several parts.
        title: above the table.
    """
    if len(runs) <= MOST_COMPARED:
        return comparison_table(runs, title)
    if rows["setting_hash"].n_unique() < len(rows):
        shown = [name for name in SWEPT if name in rows.columns and rows[name].count()]
        averages = averages_table(average_seeds(rows, shown), title)
        return Group(averages, Text(conditions(runs)))
    whole = 1 <= len(axes) <= MOST_SETTINGS and not any(rows[axis].null_count() for axis in axes)
    if whole and rows.select(*axes, "seed").n_unique() == len(rows):
        return sweep_table(rows, axes, title=title)
    parts = [sweep_table(rows, ["label"], metrics, title) for metrics in PARTS]
    return Group(*parts, Text(conditions(runs)))


def sweep_table(
    rows: pl.DataFrame, swept: Sequence[str], metrics: Sequence[str] = SWEPT, title: str = ""
) -> Table:
    """Many runs: a row per run with its swept settings and a few metrics.

    Args:
        rows: from `collect_runs`.
        swept: columns of the settings that vary.
        metrics: columns of the metrics to show.
        title: above the table.
    """
    settings = [name for name in swept if name in rows.columns] or ["label"]
    shown = [name for name in metrics if name in rows.columns and rows[name].count()]
    columns = [(setting_title(name), [str(value) for value in rows[name]]) for name in settings]
    columns += [(metric_title(m), [number(value, m) for value in rows[m]]) for m in shown]
    table = Table(title=title or None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for header, cells in columns:
        # A header breaks between words and never inside one, also in a terminal of 80 columns.
        width = max(map(len, (*header.split(), *cells)))
        table.add_column(header, justify="left" if header == "label" else "right", width=width)
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*row)
    return table


def conditions(runs: Sequence[Run]) -> str:
    """Load, SLO, window, machine and compile time of runs, one line each; differing values all."""
    lines = {
        "backend": _each(runs, lambda run: run.summary["backend"]),
        "device": _each(runs, lambda run: run.environment.get("device")),
        "assumed": _each(runs, _assumed),
        "offered load": _each(runs, _load),
        "SLO": _each(runs, lambda run: str(as_slo(run.summary["slo"]))),
        "window": _each(runs, _window),
        "compile time before the clock": _each(runs, _compile),
        "batching, told from the rows": _each(runs, lambda run: run.summary.get("batching")),
        "not measured": _each(runs, _not_measured),
    }
    return "\n".join(f"{name}: {text}" for name, text in lines.items() if text)


def plain_text(table: RenderableType, width: int = 120) -> str:
    """The table as text without colours, for a file."""
    console = Console(
        width=width, no_color=True, color_system=None, legacy_windows=False,
        force_jupyter=False,  # there it would show an empty output beside what it captures
    )
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def _each(runs: Sequence[Run], say: Any) -> str:
    """What is said of the runs: once if all agree, by label of a few, of many the ends."""
    said: Mapping[str, str | None] = {run.label: say(run) for run in runs}
    different = list(dict.fromkeys(text for text in said.values() if text))
    if len(set(said.values())) == 1:
        return next(iter(said.values())) or ""
    if len(said) > MOST_COMPARED:
        return f"{different[0]}; … {different[-1]} (differs between the runs)"
    return "; ".join(f"{label}: {text}" for label, text in said.items() if text)


def _load(run: Run) -> str:
    rate = run.summary["offered_rate"]
    ended = sum(run.metrics.get(name) or 0 for name in ("completed", "rejected", "failed"))
    requests = len(run.tables.requests) or ended
    return f"{requests} requests, " + (f"{rate:g} per second" if rate else "no given rate")


def _assumed(run: Run) -> str | None:
    """What a simulation stands for and takes time from."""
    cost = run.environment.get("cost")
    if not cost:
        return None
    numbers = ", ".join(f"{name} = {value}" for name, value in cost.items() if name != "name")
    parts = [run.environment.get("stands_for"), f"cost model {cost['name']} ({numbers})",
             f"{run.environment.get('num_blocks')} KV blocks"]
    return ", ".join(part for part in parts if part)


def _window(run: Run) -> str:
    window = run.summary["window"]
    where = f"from {window['start_s']:g} s" if window["rule"] == "given" else "the whole run"
    return f"{significant(float(window['duration_s']))} s, {where}"


def _compile(run: Run) -> str | None:
    seconds, count = (run.environment.get(name) for name in ("compile_s", "compile_count"))
    return None if seconds is None else f"{significant(float(seconds))} s for {count} programs"


def _not_measured(run: Run) -> str | None:
    by_reason: dict[str, list[str]] = {}
    for metric, why in run.summary["not_measured"].items():
        by_reason.setdefault(why, []).append(metric.removesuffix("_s"))
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items()) or None
