"""Tables, figures and traces, drawn from the files of runs; never needed to make them."""

from cbjax.report.by_run import draw_by_run
from cbjax.report.capacity import capacities, capacity_table
from cbjax.report.distributions import draw_latencies
from cbjax.report.estimates import estimates_table
from cbjax.report.files import NotDrawable, draw_runs, draw_study, redraw
from cbjax.report.gaps import draw_gaps
from cbjax.report.grid import draw_grid, grid_axes
from cbjax.report.occupancy import draw_occupancy
from cbjax.report.padding import draw_padding
from cbjax.report.paired import paired_differences, paired_tables
from cbjax.report.style import house_style, policy_colour, save
from cbjax.report.tables import (
    comparison_table,
    conditions,
    plain_text,
    study_table,
    sweep_table,
)
from cbjax.report.terminal import ascii_timeline
from cbjax.report.timeline import draw_timeline
from cbjax.report.trace import write_trace
from cbjax.report.views import tables as view_tables

__all__ = [
    "NotDrawable",
    "ascii_timeline",
    "capacities",
    "capacity_table",
    "comparison_table",
    "conditions",
    "draw_by_run",
    "draw_gaps",
    "draw_grid",
    "draw_latencies",
    "draw_occupancy",
    "draw_padding",
    "draw_runs",
    "draw_study",
    "draw_timeline",
    "estimates_table",
    "grid_axes",
    "house_style",
    "paired_differences",
    "paired_tables",
    "plain_text",
    "policy_colour",
    "redraw",
    "save",
    "study_table",
    "sweep_table",
    "view_tables",
    "write_trace",
]
