"""Fitted: a linear cost model by least squares on the iterations of a real run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Float

from cbjax.simulate.work import Work

TERMS = ("base", "tokens", "prefill_tokens", "sequences", "context")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Fitted:
    """A sum of terms, in seconds per unit of each; `TERMS` in order."""

    per_unit_s: Float[Array, "5"]

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Seconds of each iteration; never less than a tenth of the constant term."""
        base, *rates = self.per_unit_s
        values = (work.tokens, work.prefill_tokens, work.sequences, work.context)
        total = base
        for rate, value in zip(rates, values, strict=True):
            total = total + rate * value.astype(jnp.float32)
        return jnp.maximum(total, 0.1 * jnp.maximum(base, 1e-6))

    @property
    def terms(self) -> Mapping[str, float]:
        """Seconds per unit by term, for results."""
        return dict(zip(TERMS, np.asarray(self.per_unit_s).tolist(), strict=True))


def fitted(
    iterations: pl.DataFrame | str | Path, *, memory: pl.DataFrame | str | Path | None = None,
    padded: bool = True,
) -> Fitted:
    """Least squares on the iterations of a run, with no term below 0.

    Args:
        iterations: the table of a run, or its `iterations.parquet`.
        memory: its memory table or file, which tells the context; without it context is no term.
        padded: the computation covered the whole rung, so its tokens are what cost time. Simulate
            with `padded=True` then.

    Raises:
        ValueError: fewer than ten iterations, or none that took time.

    Source: the iterations are weighted by 1 / duration, so that relative errors count.
    """
    rows = _read(iterations)
    if memory is not None:
        rows = rows.join(_read(memory), on="iteration")
    rows = rows.filter(pl.col("duration_s") > 0)
    if "compiled" in rows.columns:
        rows = rows.filter(~pl.col("compiled"))
    if len(rows) < 10:
        raise ValueError(f"iterations: {len(rows)} rows took time; give a run of at least ten")
    tokens = rows["scheduled_tokens"].to_numpy().astype(np.float64)
    if padded:
        tokens = tokens + rows["padded_tokens"].to_numpy()
    prefill = rows["prefill_tokens"].to_numpy().astype(np.float64)
    context = rows["live_tokens"].to_numpy() if memory is not None else np.zeros(len(rows))
    design = np.stack(
        [np.ones(len(rows)), tokens, prefill, rows["running"].to_numpy(), context], axis=1
    ).astype(np.float64)
    spent = rows["duration_s"].to_numpy()
    return Fitted(jnp.asarray(_least_squares(design / spent[:, None], spent / spent), jnp.float32))


def _read(source: Any) -> pl.DataFrame:
    return source if isinstance(source, pl.DataFrame) else pl.read_parquet(source)


def _least_squares(design: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Least squares with no coefficient below 0: the most negative term goes, one at a time."""
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    used = np.flatnonzero(np.abs(design).max(axis=0) > 0)
    while True:
        found = np.zeros(design.shape[1])
        found[used] = np.linalg.lstsq(design[:, used] / scale[used], wanted, rcond=None)[0]
        worst = used[np.argmin(found[used])]
        if found[worst] >= 0:
            return found / scale
        used = used[used != worst]
