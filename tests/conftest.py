"""For all tests: no time limit per hypothesis example, no window, no program kept for too long."""

import gc

import jax
import matplotlib
import pytest
from hypothesis import settings

# The first example of a test may compile for seconds.
settings.register_profile("cbjax", deadline=None, print_blob=True)
settings.load_profile("cbjax")
matplotlib.use("Agg")


@pytest.fixture(autouse=True, scope="module")
def programs_end_with_their_file():
    """Let compiled programs go: together they exceed the memory maps of a process on Linux."""
    yield
    jax.clear_caches()
    gc.collect()
