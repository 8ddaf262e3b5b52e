"""Counting compilations with jax's public monitoring, and the cache that makes them rare.

Every program is compiled before the clock starts; a compilation afterwards is a fault that would
show up as a latency, so it is counted and reported.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

_COMPILE = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


@dataclass
class CompileCount:
    """Programs compiled or restored, the seconds that took, and how many came from the cache."""

    programs: int = 0
    seconds: float = 0.0
    cached: int = 0


_open: list[CompileCount] = []


def _on_duration(event: str, duration_secs: float, **_: str | int) -> None:
    if event == _COMPILE:
        for count in _open:
            count.programs += 1
            count.seconds += duration_secs


def _on_event(event: str, **_: str | int) -> None:
    if event == _CACHE_HIT:
        for count in _open:
            count.cached += 1


# jax offers no way to take a single listener back, so one pair serves all counts.
jax.monitoring.register_event_duration_secs_listener(_on_duration)
jax.monitoring.register_event_listener(_on_event)


def start_count() -> CompileCount:
    """A count that runs until `stop_count`."""
    count = CompileCount()
    _open.append(count)
    return count


def stop_count(count: CompileCount) -> None:
    """End a count; ending it twice changes nothing."""
    # By identity: two counts with equal numbers are different counts.
    _open[:] = [other for other in _open if other is not count]


@contextlib.contextmanager
def counting() -> Iterator[CompileCount]:
    """Count the compilations of a block."""
    count = start_count()
    try:
        yield count
    finally:
        stop_count(count)


def keep_compiled_programs(folder: Path) -> None:
    """Keep compiled programs in `folder`, unless the user has chosen a place."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """Inside, every program is compiled: those of this process are dropped, kept ones not read."""
    before = jax.config.values["jax_enable_compilation_cache"]

    def use_kept(enabled: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # otherwise jax goes by what it found at first

    jax.clear_caches()
    use_kept(False)
    try:
        yield
    finally:
        use_kept(before)
