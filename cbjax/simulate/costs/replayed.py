"""Replayed: each iteration takes the time that it took in a recorded run."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cbjax.simulate.work import Work


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Replayed:
    """Durations by the iteration's number; the last one is repeated."""

    durations_s: Float[Array, "I"]

    def seconds(self, work: Work) -> Float[Array, "*K"]:
        """Seconds of each iteration."""
        return self.durations_s[jnp.minimum(work.iteration, self.durations_s.shape[0] - 1)]


def replayed(durations_s: Sequence[float]) -> Replayed:
    """Iteration i takes `durations_s[i]` seconds, later ones as long as the last.

    With the times of a real run the decisions must be those of that run.

    Args:
        durations_s: seconds, at least one.

    Raises:
        ValueError: there are none, or one is not above 0.
    """
    times = np.asarray(durations_s, np.float32)
    if times.ndim != 1 or not len(times) or not np.all(times > 0):
        raise ValueError(
            f"durations_s = {times.tolist()[:8]}: give at least one, all above 0 seconds"
        )
    return Replayed(jnp.asarray(times))
