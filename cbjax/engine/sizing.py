"""Capacities for one policy on one system: what the arrays must be able to hold."""

from cbjax.core.limits import Limits, blocks_for
from cbjax.core.policy import Policy

INBOX = 16  # requests that may enter in one iteration


def limits_for(
    policy: Policy, *, block_size: int, num_blocks: int, max_length: int,
    iteration_tokens: int | None = None, window: int = 64, context: int = 0,
) -> Limits:
    """Limits that just hold a policy's seats and budget and a system's numbers.

    Args:
        policy: names its seats, and its budget if it has one.
        block_size, num_blocks, max_length: the system.
        iteration_tokens: most tokens of an iteration; by default the policy's budget, or
            `max_length` (so that any prompt fits) for a policy without one.
        window: waiting requests that the policy sees.
        context: token ids kept per row.

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
        blocks_per_sequence=blocks_for(max_length, block_size), inbox=INBOX, context=context,
        cached_tokens=num_blocks * block_size if policy.traits.shares else 0,
    )


def model_length(longest: int, wanted: int | None) -> int:
    """The longest sequence to serve: what the user wants of what the model reaches.

    Raises:
        ValueError: the model does not reach so far.
    """
    if wanted is not None and not 1 <= wanted <= longest:
        raise ValueError(
            f"max_length = {wanted}: this model reaches {longest} tokens; give 1..{longest}"
        )
    return wanted or longest
