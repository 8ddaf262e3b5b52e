"""For all tests: no time limit per hypothesis example, no window, programs kept on disk only."""

# ruff: noqa: E402 - the compiler is asked before anything can be compiled
import gc
import os
from importlib.metadata import version

# Tests compile hundreds of programs and run each of them briefly, so the compiler makes less of
# an effort. Flags that are set already win; the product itself never asks for this.
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
    # A flag that XLA does not know ends the process, and jax 0.12 does not know this one.
    *(["--xla_cpu_use_fusion_emitters=false"] if version("jaxlib") < "0.12" else []),
)
_asked = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [*(flag for flag in QUICK if flag.split("=")[0] not in _asked), _asked]
).strip()

import jax
import matplotlib
import pytest
from hypothesis import settings

# The first example of a test may compile for seconds.
settings.register_profile("cbjax", deadline=None, print_blob=True)
settings.load_profile("cbjax")
matplotlib.use("Agg")


def pytest_configure(config):
    """Files, processes and runs share compiled programs, in pytest's own cache."""
    programs = os.environ.setdefault(
        "JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("compiled"))
    )
    jax.config.update("jax_compilation_cache_dir", programs)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(autouse=True, scope="module")
def programs_end_with_their_file():
    """Let compiled programs go: together they exceed the memory maps of a process on Linux."""
    yield
    jax.clear_caches()
    gc.collect()
