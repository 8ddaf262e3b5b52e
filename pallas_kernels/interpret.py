"""Whether a Pallas kernel is compiled for its chip or interpreted, decided in one place.

By itself a kernel is compiled on the platform it is written for and interpreted on any other, so
that every back end runs everywhere. `using` overrules that while functions are traced: to compile
for a chip that is not there, or to run an interpreter that looks for races. What a jitted function
was traced with stays with it; trace a fresh one under another setting.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

_chosen: ContextVar[Any] = ContextVar("interpret", default=None)


@contextmanager
def using(setting: Any) -> Iterator[None]:
    """Trace kernels with this `interpret=` inside the block.

    Args:
        setting: False compiles, True is the HLO interpreter (quick, no semaphores to wait for),
            `pltpu.InterpretParams(...)` the interpreter of a TPU's memories and semaphores.
    """
    token = _chosen.set(setting)
    try:
        yield
    finally:
        _chosen.reset(token)


def setting_for(platform: str) -> Any:
    """The `interpret=` of a kernel written for `platform` ("tpu" or "gpu")."""
    chosen = _chosen.get()
    return jax.default_backend() != platform if chosen is None else chosen
