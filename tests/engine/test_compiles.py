"""Compile time and a layer's attention can be measured alone, whatever was kept or runs beside."""

import jax
import jax.numpy as jnp
import pytest

from cbjax.engine.attention_time import attention_seconds
from cbjax.engine.compiles import compiling_anew, counting
from cbjax.models import load_model


@jax.jit
def step(values):
    return 3 * values + 1


@pytest.fixture
def kept(tmp_path):
    """A cache on disk that holds whatever was compiled."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    with compiling_anew():  # jax looks for a cache once; this lets it look again
        pass
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_nothing_that_was_kept_is_used_while_compiling_anew(kept):
    values = jnp.ones(3)
    step(values)
    with counting() as again:
        step(values)
    assert again.programs == 0
    with counting() as anew, compiling_anew():
        step(values)
    assert anew.programs == 1 and anew.cached == 0
    jax.clear_caches()
    with counting() as after:
        step(values)
    assert after.cached == 1, "the cache is back"


def test_attention_takes_longer_by_single_tokens_than_by_blocks():
    """Each block is looked up in the table: 32 times as many of them cost more."""
    config = load_model("tiny").config
    single, usual = (attention_seconds(config, block_size=size) for size in (1, 32))
    assert 0 < usual < single
