"""CPU time of one attention layer and one KV write, beside padding and the definition.

    python -m benchmarks.attention [--threads 1 2] [--block-size 16] [--dtype float32] [--seconds 1]

SmolLM2's attention (9 query heads, 3 KV heads of 64), contexts log-normal up to 1024 tokens.
Three ways to the same numbers:

* xla: `pallas_kernels`' XLA back end, whose cost follows live blocks;
* padded: every table gathered up to the longest context, every chunk padded to the longest;
* reference: the definition (not run where it would take seconds).

Each figure is for one layer of several in a compiled program (`cbjax.engine.attention_time`): `cpu`
is process CPU time, `wall` elapsed time, both the lowest of several samples; `floor` is the live KV
bytes over the rate at which this process reads memory (one numpy reduction over as many bytes).
Thread counts run in a process each, as the runtime fixes them at its start. Writes
`results/benchmarks/attention.json`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cbjax.engine.attention_time import LAYERS, least_seconds, through_layers

HEADS = "smollm2-135m"


def sample(call: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Lowest CPU and wall milliseconds of a call."""
    computed, elapsed = least_seconds(call, seconds)
    return 1e3 * computed, 1e3 * elapsed


def padded_attention(arguments, layer, width: int, longest: int):
    """Dense attention on tables cut to `width` blocks and chunks padded to `longest` queries."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels import storage

    q = arguments["q"]
    contexts, starts = arguments["context_lengths"], arguments["query_starts"]
    tables = jnp.maximum(arguments["block_tables"][:, :width], 0)

    def rows(cache):
        blocks = storage.from_storage(cache[layer, tables])  # [S, W, K, B, D]
        return jnp.moveaxis(blocks, 2, 1).reshape(len(tables), cache.shape[2], -1, q.shape[-1])

    keys, values = rows(arguments["keys"]), rows(arguments["values"])
    index = jnp.minimum(starts[:-1, None] + jnp.arange(longest), len(q) - 1)  # [S, longest]
    queries = q[index].reshape(len(tables), longest, keys.shape[1], -1, q.shape[-1])
    scores = arguments["scale"] * jnp.einsum("sqkgd,skjd->skgqj", queries, keys)
    position = (contexts - (starts[1:] - starts[:-1]))[:, None] + jnp.arange(longest)
    seen = jnp.arange(keys.shape[2]) <= position[..., None]
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -1e30), axis=-1)
    out = jnp.einsum("skgqj,skjd->sqkgd", weights, values).reshape(
        len(tables), longest, *q.shape[1:]
    )
    place = jnp.arange(len(q)) - starts[arguments["sequences"]]
    return out[arguments["sequences"], place]


def attention_rows(block_size: int, dtype: str, seconds: float):
    """One row per batch: live tokens, floor and the figures of each way."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes

    batches = {f"decode {n}": shapes.decodes(n, seed=n) for n in (1, 8, 32, 64)}
    batches |= {f"prefill {n}": [(n, n)] for n in (64, 128, 256)}
    batches["31 decodes + 128"] = shapes.mixed(32, 128, seed=32)
    for name, mixture in batches.items():
        given = shapes.arguments(
            shapes.HEADS[HEADS], mixture, block_size=block_size, num_layers=LAYERS, dtype=dtype
        )
        # A number such as the scale is part of the program, not of what it is given.
        numbers = {name: given.pop(name) for name in list(given) if np.ndim(given[name]) == 0}
        arguments = jax.tree.map(jnp.asarray, given)
        live, longest = sum(c for c, _ in mixture), max(q for _, q in mixture)
        width = given["block_tables"].shape[1]
        per_block = given["keys"][0, 0].nbytes / block_size
        memory = np.ones(int(2 * per_block * live) // 8, np.int64)
        floor, _ = sample(memory.max, min(seconds, 0.2))

        ways = {"xla": lambda a, layer: ragged_paged_attention(layer=layer, **a)}
        if len(mixture) * longest <= 1024:
            ways["padded"] = lambda a, layer, w=width, n=longest: padded_attention(a, layer, w, n)
        if len(given["q"]) * width * block_size <= 64 * 1024:
            ways["reference"] = lambda a, layer: ragged_paged_attention(
                layer=layer, implementation="reference", **a
            )
        row = {"batch": name, "live": live, "floor_ms": floor}
        results = []
        for way, attend in ways.items():
            layers = through_layers(lambda a, layer, f=attend, n=numbers: f({**a, **n}, layer))
            results.append(layers(arguments))
            cpu, wall = sample(lambda f=layers, a=arguments: f(a), seconds)
            row[f"{way}_cpu_ms"], row[f"{way}_wall_ms"] = cpu / LAYERS, wall / LAYERS
        for other in results[1:]:
            np.testing.assert_allclose(results[0], other, atol=1e-5)
        yield row


def write_rows(block_size: int, dtype: str, seconds: float):
    """CPU microseconds per layer of writing T tokens into caches of different sizes."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels.kv_write import new_kv_cache, write_kv

    for tokens in (8, 64, 256):
        for num_blocks in (100, 1000, 10000):
            cache = new_kv_cache(LAYERS, num_blocks, 3, block_size, 64, dtype)
            new = jnp.ones((tokens, 3, 64))
            blocks = jnp.arange(tokens) * 7 % num_blocks
            offsets = jnp.arange(tokens) % block_size

            def step(keys, values, new=new, blocks=blocks, offsets=offsets):
                def one(pair, layer):
                    return write_kv(*pair, new, new, layer, blocks, offsets), None

                return jax.lax.scan(one, (keys, values), jnp.arange(LAYERS))[0]

            compiled = jax.jit(step, donate_argnums=(0, 1))
            held = [compiled(*cache)]

            def call(held=held, compiled=compiled):
                held[0] = compiled(*held[0])
                return held[0]

            cpu, _ = sample(call, seconds / 2)
            yield {"tokens": tokens, "num_blocks": num_blocks, "cpu_us": cpu / LAYERS * 1e3}


def table(rows: list[dict]) -> None:
    """Print the rows of one thread count."""
    columns = f"{'batch':18}{'live':>7}{'floor':>8}"
    columns += "".join(f"{n:>16}" for n in ("xla cpu/wall", "padded cpu/wall", "ref. cpu/wall"))
    print(columns + f"{'xla/floor':>11}{'padded/xla':>11}{'ref./xla':>10}   (ms per layer)")
    for row in rows:
        line = f"{row['batch']:18}{row['live']:7d}{row['floor_ms']:8.3f}"
        for way in ("xla", "padded", "reference"):
            known = f"{way}_cpu_ms" in row
            cell = f"{row[f'{way}_cpu_ms']:.2f}/{row[f'{way}_wall_ms']:.2f}" if known else "-"
            line += f"{cell:>16}"
        line += f"{row['xla_cpu_ms'] / row['floor_ms']:11.1f}"
        for way, width in (("padded", 11), ("reference", 10)):
            ratio = row.get(f"{way}_cpu_ms", float("nan")) / row["xla_cpu_ms"]
            line += f"{ratio:{width}.1f}" if ratio == ratio else " " * (width - 1) + "-"
        print(line, flush=True)


def main() -> None:
    """Run one process per thread count and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    settings = (given.block_size, given.dtype, given.seconds)
    if given.measure:
        rows = {"attention": list(attention_rows(*settings)), "write": list(write_rows(*settings))}
        print(json.dumps(rows))
        return
    import jax

    report = {"jax": jax.__version__, "block_size": given.block_size, "dtype": given.dtype}
    for threads in given.threads:
        environment = {**os.environ, "NPROC": str(threads)}
        if threads == 1:
            flags = os.environ.get("XLA_FLAGS", "")
            environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false"
        command = [sys.executable, "-m", "benchmarks.attention", "--measure", *sys.argv[1:]]
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        measured = json.loads(done.stdout.splitlines()[-1])
        report[f"threads_{threads}"] = measured
        print(
            f"\njax {jax.__version__}, {given.dtype}, block {given.block_size}, {threads} thread(s)"
        )
        table(measured["attention"])
        print("KV write, CPU us per layer: tokens x blocks in the pool")
        for tokens in sorted({row["tokens"] for row in measured["write"]}):
            own = [row for row in measured["write"] if row["tokens"] == tokens]
            cells = (f"N={row['num_blocks']}: {row['cpu_us']:.0f}" for row in own)
            print(f"  T={tokens:<4}" + "   ".join(cells))
    path = Path("results/benchmarks/attention.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
