"""What is compiled: the shapes of models that people serve, on as many chips as they use."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import storage
from pallas_kernels.block_copy import copy_blocks
from pallas_kernels.kv_write import write_kv
from pallas_kernels.quantised import Quantised
from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.shapes import HEADS, Heads

POSITIONS = 1 << 17  # of a cache large enough for a copy of it to show
# On a GPU a cache of more than 4 GiB takes wider indices, which take registers.
TPU_LAYERS, GPU_LAYERS = 2, 32


@dataclass(frozen=True)
class Case:
    """One kernel at one shape."""

    name: str
    kernel: str  # "attention", "kv_write" or "block_copy"
    heads: Heads
    block_size: int = 16
    tokens: int = 512
    sequences: int = 64
    longest: int = 4096
    query_dtype: str = "bfloat16"
    dtype: str = "bfloat16"
    options: dict[str, Any] = field(default_factory=dict)
    may_copy: bool = False  # the cache, where its blocks fill no tile of a TPU

    def cache_shape(self, wide: bool) -> tuple[int, ...]:
        """`[L, N, K, B, D]`; wide caches fill whole TPU lanes."""
        head_dim = self.heads.head_dim
        head_dim = storage.whole_lanes(head_dim) if wide else head_dim
        blocks = POSITIONS // self.block_size
        layers = TPU_LAYERS if wide else GPU_LAYERS
        return layers, blocks, self.heads.num_kv_heads, self.block_size, head_dim

    def cache_bytes(self, wide: bool) -> int:
        """Of keys or values."""
        size = jnp.dtype(self.dtype).itemsize
        for n in self.cache_shape(wide):
            size *= n
        return size

    def lower(self, back_end: str, sharding: Any, wide: bool) -> Any:
        """Trace the kernel for the chip that `sharding` lies on."""

        def array(shape: tuple[int, ...], dtype: str = "int32") -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)

        heads, count = self.heads, self.tokens
        half: Any = array(self.cache_shape(wide), self.dtype)
        if self.dtype in storage.SCALED_DTYPES:
            half = array(half.shape, storage.storage_dtype(self.dtype).name)
            tile = storage.scales_shape(heads.num_kv_heads, self.block_size, wide)
            scales: Any = array((*half.shape[:2], *tile), "float32")
            half = Quantised(half, scales)
        cache = (half, half)
        if self.kernel == "kv_write":
            new = (array((count, heads.num_kv_heads, heads.head_dim), self.query_dtype),) * 2
            call = jax.jit(
                lambda *a: write_kv(*a, implementation=back_end), donate_argnums=(0, 1)
            )
            return call.lower(*cache, *new, array(()), array((count,)), array((count,)))
        if self.kernel == "block_copy":
            call = jax.jit(
                lambda *a: copy_blocks(*a, implementation=back_end), donate_argnums=(0, 1)
            )
            return call.lower(*cache, array((64,)), array((64,)))
        width = -(-self.longest // self.block_size)
        batch = {
            "block_tables": array((self.sequences, width)),
            "context_lengths": array((self.sequences,)),
            "query_starts": array((self.sequences + 1,)),
            "sequences": array((count,)),
            "positions": array((count,)),
        }

        def attend(q: Any, keys: Any, values: Any, layer: Any, batch: Any) -> Any:
            return ragged_paged_attention(
                q, keys, values, layer, scale=heads.head_dim**-0.5, implementation=back_end,
                **batch, **self.options,
            )

        q = array((count, heads.num_heads, heads.head_dim), self.query_dtype)
        return jax.jit(attend).lower(q, *cache, array(()), batch)


def production() -> list[Case]:
    """Every case that must compile for every chip."""
    models = {"smollm2": HEADS["smollm2-135m"], "qwen3-0.6b": HEADS["qwen3-0.6b"]}
    models["gemma-7b"] = HEADS["gemma-7b"]
    for ways in (1, 4, 8):
        models[f"llama3.1-8b/{ways}"] = HEADS["llama3.1-8b"].shard(ways)
        models[f"llama3.1-70b/{ways}"] = HEADS["llama3.1-70b"].shard(ways)
    cases = [Case(name, "attention", heads) for name, heads in models.items()]
    llama, gemma, small = (models[n] for n in ("llama3.1-8b/1", "gemma-7b", "smollm2"))
    cases += [
        Case("llama3.1-8b/1", "attention", llama, block_size=size) for size in (8, 64, 256)
    ]
    cases += [
        Case("llama3.1-8b/1 2k", "attention", llama, block_size=1, longest=2048, may_copy=True),
        Case("llama3.1-8b/1 decode rung", "attention", llama, tokens=64),
        Case("llama3.1-8b/1 32k", "attention", llama, block_size=64, longest=1 << 15),
        Case("llama3.1-8b/1 q f32", "attention", llama, query_dtype="float32"),
        Case("llama3.1-8b/1 int8", "attention", llama, dtype="int8"),
        Case("smollm2 q f32, e4m3", "attention", small, query_dtype="float32",
             dtype="float8_e4m3fn", options={"causal": False}),
        Case("gemma-7b q f32", "attention", gemma, query_dtype="float32"),
        Case("smollm2 all f32", "attention", small, query_dtype="float32", dtype="float32"),
        Case(
            "gemma-7b window, cap", "attention", gemma, options={"window": 1024, "soft_cap": 50.0}
        ),
    ]
    for kernel in ("kv_write", "block_copy"):
        cases += [Case(name, kernel, models[name]) for name in ("smollm2", "llama3.1-8b/1")]
        cases += [Case("gemma-7b", kernel, gemma), Case("llama3.1-70b/8", kernel, Heads(8, 1, 128))]
        cases += [Case("llama3.1-8b/1", kernel, llama, block_size=size) for size in (8, 128)]
        cases += [Case("llama3.1-8b/1 int8", kernel, llama, block_size=32, dtype="int8")]
        cases += [Case("smollm2 e4m3", kernel, small, block_size=32, dtype="float8_e4m3fn")]
    return cases


def one_of_each_kind() -> list[Case]:
    """A few of them: every kernel, type and option once."""
    kinds = {
        (case.kernel, case.query_dtype, case.dtype, *case.options): case
        for case in reversed(production()) if not case.may_copy
    }
    return list(kinds.values())
