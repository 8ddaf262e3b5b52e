"""From a config to the arguments that both the engine and the unit clock take."""

from typing import Any

from cbjax.config import RunConfig
from cbjax.core.ladder import Ladder, ladder
from cbjax.core.policy import Policy
from cbjax.engine.sizing import limits_for
from cbjax.engine.tuning import ladder_within, tuned


def sizes_of(config: RunConfig) -> dict[str, Any]:
    """Block size, pools, window and tokens of an iteration, as keyword arguments."""
    return {
        "block_size": config.kv.block_size,
        "num_blocks": config.kv.blocks,
        "swap_blocks": config.kv.swap_blocks,
        "iteration_tokens": config.iteration_tokens,
        "window": config.window,
    }


def ladder_of(config: RunConfig, policy: Policy, max_length: int) -> Ladder | None:
    """The ladder that `config.ladder` asks for; None for the default one.

    Sizes beyond the greatest schedulable batch are left out, so that one ladder serves a sweep over
    seats and budgets.

    Args:
        config: sizes of decode and mixed rungs.
        policy: its seats and budget bound the rungs.
        max_length: most tokens of a sequence, which bounds them where there is no budget.

    Raises:
        ValueError: a size below 1, or a tuned ladder that nobody has tuned.
    """
    wanted = config.ladder
    if wanted.decode is None and wanted.mixed is None and not wanted.tuned:
        return None
    limits = limits_for(
        policy, block_size=config.kv.block_size, num_blocks=1, max_length=max_length,
        iteration_tokens=config.iteration_tokens, window=config.window,
    )
    if wanted.tuned:
        costs = tuned(config.model.source, config.model.dtype, config.model.attention)
        return ladder_within(costs, limits.tokens, limits.seats)
    return ladder(
        limits.tokens, limits.seats, decode=_up_to(limits.seats, wanted.decode),
        mixed=_up_to(limits.tokens, wanted.mixed),
    )


def _up_to(most: int, sizes: list[int] | None) -> list[int] | None:
    return None if sizes is None else [size for size in sizes if size <= most]
