"""Sizes of an engine: the capacities of a policy on a system, the longest sequence."""

from cbjax.core.sizing import INBOX, limits_for

__all__ = ["INBOX", "limits_for", "model_length"]


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
