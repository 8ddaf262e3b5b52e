"""How the matrices of the layers lie in memory: stacked, or each an array of its own.

A scan over stacked matrices hands every layer a slice. XLA's CPU compiler copies that slice before
it multiplies, which at a few tokens costs as much as the product itself. There the matrices are
kept apart, and the scan picks the layer's one with a switch whose branches hold one product each:
nothing is copied, and compile time hardly grows. Elsewhere slices are read where they lie, and a
switch would be decided by the host; there matrices stay stacked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import jax
import numpy as np
from jax import lax
from jaxtyping import Array

LAYOUTS = ("stacked", "apart")


@dataclass(frozen=True)
class OneOf:
    """The matrix of a layer whose number is known only at run time."""

    matrices: tuple[Array, ...]  # of all layers
    layer: Array

    def __getitem__(self, _: EllipsisType) -> "OneOf":
        """Itself: it stands where an array may stand."""
        return self

    def apply(self, function: Callable[[Array, Array], Array], x: Array) -> Array:
        """`function(x, matrix)`, without moving the matrix."""

        def branch(matrix: Array) -> Callable[[Array], Array]:
            return lambda x: function(x, matrix)

        return lax.switch(self.layer, [branch(matrix) for matrix in self.matrices], x)


def layout_here() -> str:
    """The quicker layout on jax's default platform."""
    return "apart" if jax.default_backend() == "cpu" else "stacked"


def lay_out(weights: dict[str, Any], layout: str | None = None) -> dict[str, Any]:
    """Weights as the decoder is quickest with them.

    Args:
        weights: with stacked layers; the dictionary of layers is emptied, so that no stack outlives
            its parts.
        layout: "stacked", "apart", or None for the quicker one here.

    Returns:
        Weights in which each matrix of the layers is an array `[L, ...]` or a tuple of L arrays.

    Raises:
        ValueError: another layout.
    """
    layout = layout_here() if layout is None else layout
    if layout not in LAYOUTS:
        raise ValueError(f"layout: {layout!r} is unknown; use None or one of {LAYOUTS}")
    if layout == "stacked":
        return weights
    stacks, layers = weights["layers"], {}
    for name in list(stacks):
        stack = stacks.pop(name)
        # Vectors are small: the scan may slice them.
        layers[name] = stack if stack.ndim < 3 else _apart(stack)
        del stack
    return {**weights, "layers": layers}


def _apart(stack: Array) -> tuple[Array, ...]:
    # On a CPU the parts lie where the stack lay: neither time nor memory for a second copy.
    return tuple(jax.device_put(part) for part in np.asarray(stack))
