"""How tests draw examples: the same ones every time, as many as asked, however long one takes."""

from typing import Any

from hypothesis import HealthCheck, settings


def drawn(examples: int, **more: Any) -> settings:
    """The settings of a test over `examples` drawn ones; `more` as hypothesis names it."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck), **more,
    )
