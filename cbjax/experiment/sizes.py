"""From a config to the arguments that both the engine and the unit clock take."""

from typing import Any

from cbjax.config import RunConfig
from cbjax.core.ladder import Ladder, ladder
from cbjax.core.policy import Policy
from cbjax.engine.sizing import limits_for


def sizes_of(config: RunConfig) -> dict[str, Any]:
    """Block size, pool, window and tokens of an iteration, as keyword arguments."""
    return {
        "block_size": config.kv.block_size,
        "num_blocks": config.kv.blocks,
        "iteration_tokens": config.iteration_tokens,
        "window": config.window,
    }


def ladder_of(config: RunConfig, policy: Policy, max_length: int) -> Ladder | None:
    """The ladder that `config.ladder` asks for; None for the default one.

    Args:
        config: sizes of decode and mixed rungs.
        policy: its seats and budget bound the rungs.
        max_length: most tokens of a sequence, which bounds them where there is no budget.

    Raises:
        ValueError: a rung beyond the greatest schedulable batch.
    """
    if config.ladder.decode is None and config.ladder.mixed is None:
        return None
    limits = limits_for(
        policy, block_size=config.kv.block_size, num_blocks=1, max_length=max_length,
        iteration_tokens=config.iteration_tokens, window=config.window,
    )
    return ladder(
        limits.tokens, limits.seats, decode=config.ladder.decode, mixed=config.ladder.mixed
    )
