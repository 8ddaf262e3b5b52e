"""What both formats say about positions: scaled rotations, and windows, which are refused."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from cbjax.models.config import UnsupportedModelError


def refuse_window(name: str, window: int, max_length: int) -> NoReturn:
    """A window that would bite cannot be served."""
    raise UnsupportedModelError(
        f"{name}: {window} is not supported: windowed layers need their own KV blocks, and full "
        f"attention would differ beyond position {window} of {max_length}; use a version of the "
        "model without a sliding window"
    )


def rope_divisors(rope: Mapping[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """How much slower each rotated pair turns than in the plain scheme."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in ("default", "none"):
        return ()
    factor = float(rope.get("factor") or 1.0)
    pairs = head_dim // 2
    if kind == "linear":
        return (factor,) * pairs
    if kind != "llama3":
        raise UnsupportedModelError(
            f"rope_type: {kind!r} is not supported; supported are default, linear and llama3"
        )
    # Llama 3.1: wavelengths short against the original context stay, long ones are stretched by
    # `factor`, and those between are blended.
    fields = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    missing = [name for name in fields if rope.get(name) is None]
    if missing:
        raise ValueError(f"rope scaling llama3: {', '.join(missing)} missing in config.json")
    original, low, high = (float(rope[name]) for name in fields)
    divisors = []
    for pair in range(pairs):
        turns = original / (2 * math.pi * theta ** (2 * pair / head_dim))
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / (kept + (1.0 - kept) / factor))
    return tuple(divisors)
