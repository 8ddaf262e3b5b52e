"""The TPU kernels under an interpreter that knows of copies, semaphores and races.

The quick interpreter lets a copy that nobody waits for pass; this one does not. That it notices
each kind of mistake is tested too, on a small kernel with the mistake built in and on the real one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import interpret
from pallas_kernels.block_copy import copy_blocks
from pallas_kernels.kv_write import new_kv_cache, write_kv
from pallas_kernels.ragged_paged_attention import _tpu_kernel, ragged_paged_attention, shapes
from pallas_kernels.ragged_paged_attention.shapes import Heads
from tests.pallas_kernels.tpu_interpreter import MODES, counting_copies, races_found, watched

SMALL = Heads(4, 2, 16)
MIXTURE = [(12, 4), (1, 1), (0, 0), (30, 1), (44, 40)]


def attend(implementation, arguments, **options):
    return ragged_paged_attention(
        layer=0, implementation=implementation, **options, **arguments
    )


def check_clean(arguments, mode, **options):
    with watched(mode):
        found = jax.block_until_ready(attend("tpu", arguments, **options))
        assert not races_found()
    expected = attend("reference", arguments, **options)
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_attention_is_free_of_races(mode):
    check_clean(shapes.arguments(SMALL, MIXTURE, block_size=4, tokens=50, sequences=7), mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_attention_on_bytes_is_free_of_races(mode):
    given = shapes.arguments(
        SMALL, MIXTURE, block_size=4, tokens=50, sequences=7, dtype="float8_e4m3fn"
    )
    check_clean(given, mode, causal=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block_size", [1, 8, 24])
@pytest.mark.parametrize(
    "mixture",
    [
        [(0, 0)] * 3,
        [(1, 1)],
        [(1, 1), (2, 1), (3, 1), (90, 1), (17, 1), (16, 1)],
        [(90, 90)],
        [(65, 33), (0, 0), (64, 64), (40, 2)],
    ],
    ids=["nothing", "one token", "decodes", "a prompt", "chunks"],
)
def test_attention_is_free_of_races_on_many_batches(mixture, block_size, mode):
    arguments = shapes.arguments(SMALL, mixture, block_size=block_size)
    check_clean(arguments, mode, window=19 if block_size == 8 else None)


@pytest.mark.parametrize("mode", MODES)
def test_kv_write_is_free_of_races(mode):
    """More runs than buffers, runs of one row and of many, padding among them."""
    cache = new_kv_cache(2, 24, 2, 16, 8, "float32")
    blocks = np.array([3] * 16 + list(range(4, 18)) + [24, -1, 20, 20, 24, 20])
    offsets = np.array([*range(16), *range(14), 0, 0, 7, 9, 0, 8])
    new = np.random.default_rng(0).standard_normal((2, len(blocks), 2, 8), np.float32)
    given = (*cache, *new, 1, blocks, offsets)
    with watched(mode):
        found = jax.block_until_ready(write_kv(*given, implementation="tpu"))
        assert not races_found()
    for one, wanted in zip(found, write_kv(*given, implementation="xla"), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_block_copy_is_free_of_races(mode):
    keys, values = new_kv_cache(2, 40, 2, 4, 8, "float32")
    keys = keys + jnp.arange(40.0)[None, :, None, None, None]
    given = (keys, values - keys, np.arange(20), np.arange(39, 19, -1))
    with watched(mode):
        found = jax.block_until_ready(copy_blocks(*given, implementation="tpu"))
        assert not races_found()
    for one, wanted in zip(found, copy_blocks(*given, implementation="xla"), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("window", [None, 9])
def test_only_live_pages_are_fetched_and_each_once_per_tile(window):
    """Work follows live blocks, whatever the seats, the table width and the size of the pool."""
    mixture = [(12, 4), (1, 1), (0, 0), (30, 1), (23, 1)]
    arguments = shapes.arguments(
        SMALL, mixture, block_size=4, tokens=32, sequences=12, table_width=64, num_blocks=99
    )
    with watched(), counting_copies(arguments["keys"].shape) as fetched:
        jax.block_until_ready(attend("tpu", arguments, window=window))
    expected = []
    for (context, queries), table in zip(mixture, arguments["block_tables"], strict=False):
        first = 0 if window is None else max(context - queries - window + 1, 0) // 4
        expected += [int(block) for block in table[first : -(-context // 4)]]
    # Keys and values have one shape, so every page is seen twice.
    assert sorted(block for _, block, *_ in fetched) == sorted(2 * expected)


PAGES, ROWS = 6, 8


def sum_of_pages(table, pages, *, mistake=""):
    """A small kernel with two buffers, as the real one has, and a mistake of choice."""

    def kernel(table, hbm, out, buffers, total, semaphores):
        def copy(i, act):
            slot = lax.rem(i, 2)
            page = table[i] + (1000 if mistake == "out of range" else 0)
            target = buffers.at[0 if mistake == "race" else slot]
            one = pltpu.make_async_copy(hbm.at[page], target, semaphores.at[slot])
            if not (act == "wait" and mistake == "no wait"):
                getattr(one, act)()

        if mistake != "uninitialised":
            total[...] = jnp.zeros_like(total[...])
        copy(0, "start")

        def step(i, nothing):
            pl.when(i + 1 < PAGES)(lambda: copy(i + 1, "start"))
            copy(i, "wait")
            total[...] += buffers[0 if mistake == "race" else lax.rem(i, 2)]
            return nothing

        lax.fori_loop(0, PAGES, step, 0)
        out[...] = total[...]

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((ROWS, 128), lambda *_: (0, 0)),
            scratch_shapes=[
                pltpu.VMEM((2, ROWS, 128), jnp.float32), pltpu.VMEM((ROWS, 128), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((ROWS, 128), jnp.float32),
        interpret=interpret.setting_for("tpu"),
    )(table, pages)


def race_in(run) -> bool:
    """Whether the interpreter sees a race: it takes a note of it, or (jax 0.12) raises it."""
    try:
        jax.block_until_ready(run())
    except jax.errors.JaxRuntimeError as error:
        if "RACE DETECTED" not in str(error):
            raise
        return True
    return races_found()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mistake", ["", "no wait", "race", "out of range", "uninitialised"])
def test_the_interpreter_notices(mistake, mode):
    pages = jnp.asarray(np.random.default_rng(0).standard_normal((9, ROWS, 128), np.float32))
    table = np.array([3, 1, 4, 8, 5, 0], np.int32)
    expected = np.asarray(pages[table].sum(axis=0))
    with watched(mode):
        run = functools.partial(sum_of_pages, table, pages, mistake=mistake)
        if mistake == "out of range":
            with pytest.raises(Exception, match="(?i)out.of.bound"):
                jax.block_until_ready(run())
            return
        if mistake == "race" or (mistake == "no wait" and mode != "on_wait"):
            assert race_in(run)
            return
        found = np.asarray(run())
        right = np.allclose(found, expected, atol=1e-5)
        if mistake == "":
            assert right and not races_found()
        elif mistake == "uninitialised":
            assert np.isnan(found).all()
        else:
            assert np.isnan(found).all()  # the copy was never carried out


@pytest.mark.parametrize("forgotten", ["pages", "queries"])
def test_a_forgotten_wait_in_the_real_kernel_is_noticed(monkeypatch, forgotten):
    arguments = shapes.arguments(SMALL, [(12, 4), (30, 1)], block_size=4)
    make = pltpu.make_async_copy

    class Careless:
        def __getattr__(self, name):
            return getattr(pltpu, name)

        @staticmethod
        def make_async_copy(source, target, semaphore):
            copy = make(source, target, semaphore)
            if len(target.shape) == {"pages": 3, "queries": 4}[forgotten]:
                copy.wait = lambda: None
            return copy

    monkeypatch.setattr(_tpu_kernel, "pltpu", Careless())
    with watched("eager"):
        assert race_in(lambda: attend("tpu", arguments))


def test_a_table_entry_outside_of_the_pool_is_noticed():
    arguments = shapes.arguments(SMALL, [(12, 4), (30, 1)], block_size=4)
    arguments["block_tables"][1, 2] = 1000
    with watched(), pytest.raises(Exception, match="(?i)out.of.bound"):
        jax.block_until_ready(attend("tpu", arguments))
