"""Kernels and shapes that must not compile: proof that the compile layer can fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton

from pallas_kernels.ragged_paged_attention import _tpu_tiles, _triton_tiles, tpu
from pallas_kernels.ragged_paged_attention.shapes import HEADS
from pallas_kernels.verify.cases import Case
from pallas_kernels.verify.targets import compiling

LLAMA = Case("llama3.1-8b/1", "attention", HEADS["llama3.1-8b"])


@dataclass(frozen=True)
class Mistake:
    """Something wrong on purpose."""

    name: str
    expected: str  # pattern of the compiler's or the check's words
    attempt: Callable[[Any, Callable], str | None]  # device, problem_of -> problem


@contextmanager
def changed(module: Any, name: str, value: Any) -> Iterator[None]:
    """Another value of a module's constant inside the block."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def of(platform: str) -> list[Mistake]:
    """The mistakes for "tpu" or "cuda"."""
    if platform == "tpu":
        return [
            Mistake("pages that VMEM cannot hold", "(?i)vmem", _too_much_vmem),
            Mistake("tables that SMEM cannot hold", "(?i)smem", _too_much_smem),
            Mistake("a copy across tiles", "(?i)align|tiling|divisible", _across_tiles),
            Mistake("heads that fill no lane", "the cache is copied", _narrow_heads),
        ]
    return [
        Mistake("tiles that registers cannot hold", "(?i)spill", _spills),
        Mistake("tiles that shared memory cannot hold", "(?i)shared memory", _too_much_shared),
        Mistake("a side that is no power of two", "(?i)power of 2", _no_power_of_two),
    ]


def _attempt(case: Case, device: Any, problem_of: Callable, wide: bool = True) -> str | None:
    platform = "tpu" if device.platform == "tpu" else "cuda"
    back_end = "tpu" if platform == "tpu" else "triton"
    return problem_of(case, platform, back_end, device, wide)


def _too_much_vmem(device: Any, problem_of: Callable) -> str | None:
    greedy = replace(_tpu_tiles.TARGETS, positions=1 << 16, kv_bytes=1 << 30)
    with changed(_tpu_tiles, "TARGETS", greedy):
        return _attempt(replace(LLAMA, block_size=64, longest=1 << 16), device, problem_of)


def _too_much_smem(device: Any, problem_of: Callable) -> str | None:
    with changed(tpu, "TABLE_BYTES", 1 << 30):
        return _attempt(replace(LLAMA, sequences=512, longest=1 << 16), device, problem_of)


def _narrow_heads(device: Any, problem_of: Callable) -> str | None:
    case = replace(LLAMA, heads=HEADS["smollm2-135m"])
    return _attempt(case, device, problem_of, wide=False)


def _across_tiles(device: Any, problem_of: Callable) -> str | None:
    del problem_of

    def kernel(hbm: Any, out: Any, semaphore: Any) -> None:
        part = hbm.at[pl.ds(0, 8), pl.ds(5 * pl.program_id(0), 64)]
        copy = pltpu.make_async_copy(part, out, semaphore)
        copy.start()
        copy.wait()

    return _compile(device, lambda x: pl.pallas_call(
        kernel, grid=(2,), in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, 64), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 64), jnp.float32),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x))


def _spills(device: Any, problem_of: Callable) -> str | None:
    tile = _triton_tiles.Tile(rows=64, positions=64, warps=4)
    tiles = _triton_tiles.TILES | {("float32", "float32"): (tile, tile)}
    with changed(_triton_tiles, "TILES", tiles):
        case = replace(LLAMA, query_dtype="float32", dtype="float32")
        return _attempt(case, device, problem_of, wide=False)


def _too_much_shared(device: Any, problem_of: Callable) -> str | None:
    tile = _triton_tiles.Tile(rows=128, positions=512, warps=8)
    tiles = _triton_tiles.TILES | {("bfloat16", "bfloat16"): (tile, tile)}
    with changed(_triton_tiles, "TILES", tiles):
        return _attempt(LLAMA, device, problem_of, wide=False)


def _no_power_of_two(device: Any, problem_of: Callable) -> str | None:
    del problem_of

    def kernel(x: Any, out: Any) -> None:
        triton.store(out.at[pl.ds(0, 24)], triton.load(x.at[pl.ds(0, 24), 0]))

    return _compile(device, lambda x: pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((24,), jnp.float32),
        compiler_params=triton.CompilerParams(),
    )(x))


def _compile(device: Any, call: Callable) -> str | None:
    with compiling(device) as sharding:
        try:
            argument = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=sharding)
            jax.jit(call).lower(argument).compile()
        except Exception as error:  # whatever a compiler raises is the finding
            return " ".join(str(error).split())
    return None
