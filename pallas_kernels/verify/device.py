"""Device layer: numbers, then speed, of the kernels on the GPU or TPU of this machine.

    python -m pallas_kernels.verify device

Decode is held against the floor: bytes of live KV over the bandwidth at which this chip copies;
prefill against the rate of a large matrix product. Beside them stand jax's own paged attention, and
XLA's and cuDNN's attention on the same KV in one piece, or why one is absent. Writes
`benchmarks/results/kernels-<chip>.json`. Where there is no chip, it says so and measures nothing.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path("benchmarks/results")
ABSENT = "no GPU or TPU here: not run"


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    heads: str = "llama3.1-8b"
    sequences: int = 32
    context: int = 4096
    prompt: int = 4096
    block_sizes: tuple[int, ...] = (16, 64)
    copied: int = 1 << 28  # numbers of two bytes
    matrix: int = 8192
    layers: int = 4
    repeats: int = 20
    tolerance: float = 2e-2  # of the greatest number of a row
    ragged: tuple[tuple[int, int], ...] = (
        (1, 1), (2000, 1), (0, 0), (300, 37), (257, 257), (64, 1), (129, 2)
    )


def run() -> tuple[str, str]:
    """Measure on the default device, if it is a GPU or a TPU."""
    import jax

    platform = jax.default_backend()
    if platform not in ("gpu", "tpu"):
        return "skipped", ABSENT
    sizes = Sizes()
    rows = measure(sizes, {"gpu": "triton", "tpu": "tpu"}[platform])
    wrong = wrong_rows(rows, sizes.tolerance)
    device = jax.devices()[0]
    report = {"device": device.device_kind, "jax": jax.__version__, "measured": rows}
    path = FOLDER / f"kernels-{device.device_kind.replace(' ', '-').lower()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return ("failed" if wrong else "ok"), f"{wrong} wrong; written to {path}"


def wrong_rows(rows: list[dict[str, Any]], tolerance: float) -> int:
    """How many differ from XLA's numbers by more than the tolerance, or are no numbers."""
    return sum("error" in row and not row["error"] <= tolerance for row in rows)


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Lowest time of one call, of several in a row so that their dispatch overlaps."""
    import jax

    jax.block_until_ready(call())
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(repeats):
            last = call()
        jax.block_until_ready(last)
        best = min(best, (time.perf_counter() - started) / repeats)
    return best


def measure(sizes: Sizes, back_end: str) -> list[dict[str, Any]]:
    """All rows: numbers, the two yardsticks, then one per kind of batch and block size."""
    import jax
    import jax.numpy as jnp

    rows: list[dict[str, Any]] = _numbers(sizes, back_end)
    numbers = jnp.ones(sizes.copied, jnp.bfloat16)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 4 * sizes.copied / seconds(lambda: copy(numbers), sizes.repeats)
    del numbers
    square = jnp.ones((sizes.matrix, sizes.matrix), jnp.bfloat16)
    multiply = jax.jit(lambda x: x @ x)
    rate = 2 * sizes.matrix**3 / seconds(lambda: multiply(square), sizes.repeats)
    rows += [
        {"what": "copy", "bytes_per_s": bandwidth}, {"what": "matrix product", "flops_per_s": rate}
    ]
    print(f"  copy {bandwidth / 1e9:,.0f} GB/s, matrix product {rate / 1e12:,.1f} TFLOP/s")
    for block_size in sizes.block_sizes:
        for what, mixture in (
            ("decode", [(sizes.context, 1)] * sizes.sequences),
            ("prefill", [(sizes.prompt, sizes.prompt)]),
        ):
            row = _row(sizes, back_end, what, mixture, block_size)
            floor = row["kv_bytes"] / bandwidth if what == "decode" else row["flops"] / rate
            row |= {"floor_s": floor, "share_of_floor": floor / row["seconds"]}
            rows.append(row)
            print("  " + ", ".join(
                f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            ), flush=True)
    return rows


def _numbers(sizes: Sizes, back_end: str) -> list[dict[str, Any]]:
    """Every kernel against XLA's on a ragged batch, with every type of cache."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels.block_copy import copy_blocks
    from pallas_kernels.kv_write import write_kv
    from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes
    from pallas_kernels.verify import baselines

    heads, mixture, rows = shapes.HEADS[sizes.heads], list(sizes.ragged), []
    scale, pairs = heads.head_dim**-0.5, (jnp.asarray([3, 0]), jnp.asarray([1, 2]))

    def both(call: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [jax.jit(lambda *a, n=n: call(n, *a))(*arguments) for n in (back_end, "xla")]

    def told(what: str, error: float) -> None:
        rows.append({"what": what, "error": error})
        print(f"  {what}: error {error:.2g}", flush=True)

    for dtype in ("bfloat16", "int8", "float8_e4m3fn"):
        given = shapes.arguments(
            heads, mixture, block_size=sizes.block_sizes[0], dtype=dtype, query_dtype="bfloat16"
        )
        given = jax.tree.map(jnp.asarray, {n: x for n, x in given.items() if n != "scale"})
        told(f"ragged batch, {dtype}", baselines.difference(*both(
            lambda n, a: ragged_paged_attention(layer=0, scale=scale, implementation=n, **a), given
        )))
        cache, new = (given["keys"], given["values"]), given["q"][:, : heads.num_kv_heads]
        token = jnp.arange(len(new))
        blocks, offsets = token // sizes.block_sizes[0] - 1, token % sizes.block_sizes[0]
        writes = both(lambda n, c, *a: write_kv(*c, *a, implementation=n), cache, new, new, 0,
                      blocks, offsets)
        copies = both(lambda n, c, *a: copy_blocks(*c, *a, implementation=n), cache, *pairs)
        for what, (found, expected) in (("write", writes), ("block copy", copies)):
            same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), found, expected)
            told(f"{what}, {dtype}", 0.0 if all(jax.tree.leaves(same)) else float("inf"))
    return rows


def _row(
    sizes: Sizes, back_end: str, what: str, mixture: list[tuple[int, int]], block_size: int
) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    from pallas_kernels import storage
    from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes
    from pallas_kernels.verify import baselines

    heads = shapes.HEADS[sizes.heads]
    given = shapes.arguments(
        heads, mixture, block_size=block_size, num_layers=sizes.layers, dtype="bfloat16",
        query_dtype="bfloat16",
    )
    scale = given.pop("scale")
    arguments = jax.tree.map(jnp.asarray, given)

    def attend(arguments: Any, layer: Any, name: str) -> Any:
        return ragged_paged_attention(layer=layer, scale=scale, implementation=name, **arguments)

    @jax.jit
    def layers(arguments: Any) -> Any:
        def one(q: Any, layer: Any) -> Any:
            # The next layer waits for this one, as in a model.
            return q + 1e-3 * attend({**arguments, "q": q}, layer, back_end).astype(q.dtype), None

        return jax.lax.scan(one, arguments["q"], jnp.arange(sizes.layers))[0]

    def first(name: str) -> Any:
        return jax.jit(lambda a: attend(a, 0, name))(arguments).astype(jnp.float32)

    expected = first("xla")
    error = baselines.difference(first(back_end), expected)
    context, queries = mixture[0]
    live = sum(c for c, _ in mixture)
    pairs = sum(n * (c - n) + n * (n + 1) // 2 for c, n in mixture)
    row = {
        "what": what, "block_size": block_size, "sequences": len(mixture), "context": context,
        "error": error, "seconds": seconds(lambda: layers(arguments), sizes.repeats) / sizes.layers,
        "kv_bytes": 4 * live * heads.num_kv_heads * heads.head_dim,
        "flops": 4 * pairs * heads.num_heads * heads.head_dim,
    }
    return row | baselines.compare(
        back_end,
        arguments | {n: storage.as_numbers(arguments[n]) for n in ("keys", "values")},
        mixture, scale, expected, lambda call: seconds(call, sizes.repeats),
        interpreted=jax.default_backend() not in ("gpu", "tpu"),
    )
