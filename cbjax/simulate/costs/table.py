"""Table: measured step times, interpolated between the sizes that were measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cbjax.simulate.work import Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """Seconds over tokens and context; X and Y grid points."""

    tokens: Float[Array, "X"]
    context: Float[Array, "Y"]
    grid_s: Float[Array, "X Y"]

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Bilinear between grid points, the outermost cell's slope beyond them."""
        row, part = _place(self.tokens, work.tokens.astype(jnp.float32))
        column, share = _place(self.context, work.context.astype(jnp.float32))
        last = self.context.shape[0] - 1
        beside = jnp.minimum(column + 1, last)

        def along(row):
            here = self.grid_s[row, column]
            return here + share * (self.grid_s[row, beside] - here)

        below = along(row)
        return jnp.maximum(below + part * (along(row + 1) - below), 0.0)


def _place(points: Float[Array, "X"], values):
    """The cell of each value, and how far into it the value lies."""
    if points.shape[0] == 1:
        zero = jnp.zeros_like(values)
        return zero.astype(jnp.int32), zero
    cell = jnp.clip(jnp.searchsorted(points, values, side="right") - 1, 0, points.shape[0] - 2)
    return cell, (values - points[cell]) / (points[cell + 1] - points[cell])


def table(
    tokens: Sequence[float], seconds: Sequence[float] | Sequence[Sequence[float]],
    context: Sequence[float] = (0.0,),
) -> Table:
    """An iteration takes what was measured at its size, interpolated.

    Args:
        tokens: measured sizes in tokens per iteration, ascending, at least two.
        seconds: measured times: one per size, or one row per size with one per context.
        context: measured sums of context in positions, ascending; leave out if it was not varied.

    Raises:
        ValueError: sizes that do not ascend, times that are not above 0, or counts that differ.
    """
    sizes, contexts = np.asarray(tokens, np.float32), np.asarray(context, np.float32)
    times = np.asarray(seconds, np.float32)
    times = times[:, None] if times.ndim == 1 else times
    for name, points, least in (("tokens", sizes, 2), ("context", contexts, 1)):
        if points.ndim != 1 or len(points) < least or np.any(np.diff(points) <= 0):
            raise ValueError(f"{name} = {points.tolist()}: give at least {least}, ascending")
    if times.shape != (len(sizes), len(contexts)):
        raise ValueError(
            f"seconds of shape {times.shape}: give one row for each of the {len(sizes)} sizes, "
            f"with {len(contexts)} times each"
        )
    if not np.all(times > 0):
        raise ValueError(f"seconds = {times.min()}: give times above 0")
    return Table(jnp.asarray(sizes), jnp.asarray(contexts), jnp.asarray(times))
