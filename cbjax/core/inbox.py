"""The inbox: what reaches the scheduler in one iteration, and the door it passes.

The caller keeps the backlog (requests that found no free row) because only it holds their prompts:
a queue in the engine, a position in the trace in a simulation. The scheduler sees its length.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from cbjax.core import time
from cbjax.core.limits import Limits, System, blocks_for
from cbjax.core.policy import Traits
from cbjax.core.reasons import Refusal
from cbjax.core.rows import NO_GROUP, NO_PREDICTION, NO_REQUEST
from cbjax.core.time import Time


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inbox:
    """Arrivals in order and aborts of one iteration; A entries, the first `count` are arrivals.

    A request that ran before (moved here from elsewhere) has `known > prompt`: its outputs are part
    of what it knows and the boundary stays.
    """

    count: Int[Array, ""]
    request: Int[Array, "A"]  # handles, unique among those alive
    group: Int[Array, "A"]
    prompt: Int[Array, "A"]  # prompt tokens
    known: Int[Array, "A"]  # prompt and output tokens so far
    max_tokens: Int[Array, "A"]  # most output tokens; 0 or less = as many as fit
    predicted: Int[Array, "A"]  # predicted output tokens; NO_PREDICTION
    priority: Int[Array, "A"]
    arrival: Time  # [A]
    deadline: Time  # [A]
    token_ids: Int[Array, "A C"]  # known tokens, 0 behind them
    abort: Int[Array, "A"]  # handles to abort; NO_REQUEST
    backlog: Int[Array, ""]  # requests that wait behind the window
    clock: Time  # now


def empty_inbox(limits: Limits) -> Inbox:
    """No arrivals, no aborts; numpy arrays, to be filled in place by the host."""
    size = limits.inbox

    # numpy stands in for device arrays here, which the annotations of Inbox do not say.
    def full(value: int) -> Any:
        return np.full(size, value, np.int32)

    def number(value: int) -> Any:
        return np.int32(value)

    never = np.iinfo(np.int32).max
    return Inbox(
        count=number(0), request=full(NO_REQUEST), group=full(NO_GROUP), prompt=full(0),
        known=full(0), max_tokens=full(0), predicted=full(NO_PREDICTION), priority=full(0),
        arrival=Time(full(0), full(0)), deadline=Time(full(never), full(time.NANOSECONDS - 1)),
        token_ids=np.zeros((size, limits.context), np.int32),  # type: ignore[arg-type]
        abort=full(NO_REQUEST),
        backlog=number(0), clock=Time(number(0), number(0)),
    )


def door(
    prompt: Int[Array, "..."], max_tokens: Int[Array, "..."], limits: Limits, system: System,
    traits: Traits,
) -> tuple[Int[Array, "..."], Int[Array, "..."]]:
    """Refuse what can never run, clamp what asks for too much.

    The same formula admits a request alone on an empty pool, so whatever passes will finish.

    Args:
        prompt: prompt tokens.
        max_tokens: most output tokens; 0 or less means as many as fit.
        limits, system, traits: capacities, their numbers, the policy's facts.

    Returns:
        The output tokens that fit, and the Refusal.
    """
    pool = system.num_blocks * system.block_size
    # The newest token of a sequence has no KV until it is computed, and the last one never is.
    kv_room = pool - prompt + (0 if traits.reserves_output else 1)
    room = jnp.minimum(system.max_length - prompt, kv_room)
    wanted = jnp.where(max_tokens > 0, max_tokens, room)
    only_one = (max_tokens == 1) | (system.max_length - prompt == 1)
    unstored = only_one & (not traits.reserves_output)
    need = blocks_for(prompt + jnp.where(unstored, 0, 1), system.block_size)
    refusal = jnp.select(
        [
            prompt <= 0,
            prompt >= system.max_length,
            need > system.num_blocks,
            traits.whole_prompts & (prompt > limits.tokens),
        ],
        [
            Refusal.EMPTY_PROMPT,
            Refusal.PROMPT_TOO_LONG,
            Refusal.NEVER_FITS,
            Refusal.PROMPT_EXCEEDS_ITERATION,
        ],
        Refusal.NONE,
    )
    return jnp.minimum(wanted, room), refusal.astype(jnp.int32)
