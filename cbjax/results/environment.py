"""Where a run happened: `environment.json`, without which a timing says little.

This module asks the operating system and the installed packages only. What JAX knows (its device,
what it compiled, whether its cache was warm) is passed in by the caller, who imported JAX.
"""

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from cbjax import __version__
from cbjax.machine import cores, processor
from cbjax.results.hashing import plain, source_digest

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "polars")


def describe_environment(
    *,
    device: str = "cpu",
    compile_count: int | None = None,
    compile_s: float | None = None,
    compiles_after_start: int | None = None,
    cache_state: str | None = None,
    fresh_process: bool | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Describe the machine and the process of a run.

    Args:
        device: what computed, e.g. "cpu" or "TPU v5e x 4".
        compile_count: programs compiled for this run.
        compile_s: seconds spent compiling them.
        compiles_after_start: compilations after the run's clock started; 0 in a good run.
        cache_state: of the persistent compilation cache: "cold", "warm", "off".
        fresh_process: whether this is the first run of its process; a later one finds JAX's
            in-memory caches filled and its compile time looks free.
        more: anything else worth keeping, as plain values.

    Returns:
        A dictionary for `environment.json`. It names no host and no user.
    """
    return {
        "device": device,
        "processor": processor(),
        "cores": cores(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {"cbjax": __version__, **{name: _version(name) for name in PACKAGES}},
        "source": source_digest(),
        "compile_count": compile_count,
        "compile_s": compile_s,
        "compiles_after_start": compiles_after_start,
        "cache_state": cache_state,
        "fresh_process": fresh_process,
        **_plain_mapping(more),
    }


def _plain_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in values.items()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
