"""The interpreter of a TPU's memories and semaphores: what it found, and what it moved.

Part of what is asked here has no public name yet; where a version of jax keeps it elsewhere, the
tests are skipped with the reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import interpret

# A copy is told from others by one of so many clocks, drawn at random. With the default of two, all
# copies share one, and waiting for any of them seems to be waiting for all.
CLOCKS = 256
MODES = ("on_wait", "eager")  # a copy is carried out when it is waited for, or when it is started


def _internals():
    try:
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    except ImportError as problem:
        pytest.skip(f"jax {jax.__version__} keeps the interpreter's state elsewhere: {problem}")
    return interpret_pallas_call


@contextmanager
def watched(mode: str = "on_wait") -> Iterator[None]:
    """Interpret TPU kernels with race detection; its state is dropped at the end."""
    parameters = pltpu.InterpretParams(
        detect_races=True, dma_execution_mode=mode, vector_clock_size=CLOCKS
    )
    try:
        with interpret.using(parameters):
            yield
    finally:
        pltpu.reset_tpu_interpret_mode_state()


def races_found() -> bool:
    """Whether the last kernel that was interpreted raced."""
    return bool(_internals().races.races_found)


@contextmanager
def counting_copies(shape: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """The leading indices of every copy out of an array of `shape` that is started inside."""
    internals, started = _internals(), []
    original = internals.dma_start

    def start(token, device, core, space, identity, transforms, *rest, **more):
        if tuple(transforms[0].shape) == shape:
            whole = [i for i in transforms[0].indices if not hasattr(i, "size") or i.size == 1]
            started.append(tuple(int(i) for i in whole if not hasattr(i, "stride")))
        return original(token, device, core, space, identity, transforms, *rest, **more)

    internals.dma_start = start
    try:
        yield started
    finally:
        internals.dma_start = original
