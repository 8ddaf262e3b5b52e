"""KV block sizes side by side: what is measured, what is counted, and the floor on paper."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from matplotlib.figure import Figure

from cbjax.hardware import load, models, roofline
from cbjax.report.views.curves import draw as draw_curves

SETTING = "kv.block_size"
METRICS = (
    "environment.attention_ms", "paper.fetches", "paper.kv_read_us",
    "kv_waste", "environment.block_table_bytes", "preemptions",
    "ttft_s.p95", "itl_s.p95", "output_tokens_per_s",
)


def draw(
    rows: pl.DataFrame, folder: Path, *, hardware: str = "h100", model: str = "llama3.1-8b",
    context: int = 300, metrics: Sequence[str] = METRICS,
) -> Figure:
    """Draw metrics over the block size.

    Two of the usual ones are on paper, for the attention of one sequence and layer of `model`: how
    many blocks are fetched, one after another, and how long reading them takes at the vendor's
    bandwidth. Blocks are read whole, so great ones cost more; small ones cost a fetch each.

    Args:
        rows: from `collect_runs`.
        folder: of the study; not used.
        hardware, model: names of `cbjax.hardware`.
        context: token positions of the sequence.
        metrics: a panel each.
    """
    chip, shape = load(hardware), models.load(model)
    layer = roofline.step_costs(shape).kv_token / shape.num_layers
    blocks = -(-context // pl.col(SETTING))
    rows = rows.with_columns(
        blocks.cast(pl.Float64).alias("paper.fetches"),
        (1e6 * blocks * pl.col(SETTING) * layer / chip.bandwidth).alias("paper.kv_read_us"),
    )
    return draw_curves(rows, folder, x=SETTING, metrics=metrics)
