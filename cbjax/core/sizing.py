"""Capacities for one policy on one system: what the arrays must be able to hold."""

from cbjax.core.limits import Limits, blocks_for
from cbjax.core.policy import Policy

INBOX = 16  # requests that may enter in one iteration


def limits_for(
    policy: Policy, *, block_size: int, num_blocks: int, max_length: int,
    iteration_tokens: int | None = None, window: int = 64, context: int = 0, tables: bool = True,
    shares_samples: bool = False,
) -> Limits:
    """Limits that just hold a policy's seats and budget and a system's numbers.

    Args:
        policy: names its seats, and its budget if it has one.
        block_size, num_blocks, max_length: the system.
        iteration_tokens: most tokens of an iteration; by default the policy's budget, or
            `max_length` (so that any prompt fits) for a policy without one.
        window: waiting requests that the policy sees.
        context: token ids kept per row.
        tables: keep block tables; without them blocks are only counted.
        shares_samples: samples of one prompt share KV.

    Raises:
        ValueError: fewer iteration tokens than seats, or than the policy's budget.
    """
    seats = int(policy.knobs[policy.seats])
    budget = policy.knobs[policy.budget] if policy.budget else None
    tokens = iteration_tokens or int(budget or max(max_length, seats))
    if tokens < seats:
        raise ValueError(
            f"iteration_tokens = {tokens} is below {policy.seats} = {seats}: one token of every "
            "running request must fit an iteration"
        )
    return Limits(
        seats=seats, window=window, tokens=tokens, blocks=num_blocks,
        blocks_per_sequence=blocks_for(max_length, block_size) if tables else 0, inbox=INBOX,
        context=context,
        cached_tokens=num_blocks * block_size if policy.traits.shares else 0,
        shares_samples=shares_samples,
    )
