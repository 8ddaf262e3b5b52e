"""What a lever does to the products or to a whole iteration, beside the program as it is.

    python -m benchmarks.levers forms [model] [--rows 1 8 16 32 256] [--repeats 9]
    python -m benchmarks.levers settings [model] [--rounds 2] [--cases 8 32 0]

`forms` times the products of all layers, one after another, written in several ways, in turn within
one process. `settings` starts `benchmarks.breakdown` under several environments, in
turn, as compiler flags and the allocator's settings hold for a process; its figure is the share
`execute` (forward and sampling). Medians; CPU seconds first, as others may use the machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.breakdown import MATRICES, in_turn
from cbjax.models import load_model
from cbjax.models.layers import product

CHUNK = 96  # rows of a matrix that stay in a core's second cache while all tokens meet them
SETTINGS = {
    "as it is": {},
    "concurrency scheduler off": {
        "XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    },
    "malloc keeps its memory": {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    },
}


def _weight_first(x: jax.Array, weight: jax.Array) -> jax.Array:
    return lax.dot_general(
        weight, x.astype(weight.dtype), (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    ).T


def _stored_in_out(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.dot(x.astype(weight.dtype), weight, preferred_element_type=jnp.float32)


def _row_by_row(x: jax.Array, weight: jax.Array) -> jax.Array:
    chunks = weight.reshape(-1, CHUNK, weight.shape[1])

    def one(chunk):
        return jnp.stack([chunk @ row for row in x.astype(weight.dtype)])

    return jnp.moveaxis(lax.map(one, chunks), 0, 1).reshape(x.shape[0], -1)


def forms(model, rows: list[int], repeats: int) -> None:
    """Print CPU and wall time of one pass over the layers' matrices, form by form."""
    layers = {name: tuple(model.weights["layers"][name]) for name in MATRICES}
    turned = {name: tuple(w.T.copy() for w in one) for name, one in layers.items()}
    ways = {
        "x @ W.T (as it is)": (product, layers),
        "(W @ x.T).T": (_weight_first, layers),
        "x @ V, V stored [in, out]": (_stored_in_out, turned),
        "matrix-vector, chunks in cache": (_row_by_row, layers),
    }
    for n in rows:
        x = {
            name: jnp.full((n, one[0].shape[1]), 0.01) for name, one in layers.items()
        }
        here = {name: way for name, way in ways.items() if n <= 8 or way[0] is not _row_by_row}
        calls = [partial(_pass, jax.jit(form), given, x) for form, given in here.values()]
        print(f"{n} rows")
        for name, times in zip(here, in_turn(calls, repeats), strict=True):
            cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"  {name:34}{cpu * 1e3:8.1f} CPU ms{wall * 1e3:8.1f} wall ms", flush=True)


def _pass(form: Callable, given: dict[str, tuple], x: dict[str, jax.Array]) -> list[jax.Array]:
    # One at a time, as a layer waits for the one before.
    return [
        jax.block_until_ready(form(x[name], weight)) for name in MATRICES for weight in given[name]
    ]


def settings(model: str, rounds: int, cases: list[int], repeats: int) -> None:
    """Print CPU and wall time of `execute` under each environment, and its ratio to the first."""
    seen = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        for _ in range(rounds):
            for name, added in SETTINGS.items():
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.breakdown", model, "--out", str(out),
                     "--repeats", str(repeats), "--cases", *map(str, cases)],
                    check=True, env=os.environ | added, stdout=subprocess.DEVNULL,
                )
                for row in json.loads(out.read_text())["rows"]:
                    if row["part"] == "execute":
                        seen[row["case"], name].append((row["cpu_s"], row["wall_s"]))
    for (case, name), times in sorted(seen.items()):
        cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
        first = statistics.median(one for one, _ in seen[case, next(iter(SETTINGS))])
        print(
            f"{case:24}{name:28}{cpu * 1e3:8.1f} CPU ms{wall * 1e3:8.1f} wall ms"
            f"{cpu / first:6.2f}x"
        )


def main() -> None:
    """Run one kind of comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("forms", "settings"))
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 16, 32, 256])
    parser.add_argument("--cases", nargs="+", type=int, default=[8, 32, 0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if options.kind == "forms":
        forms(load_model(options.model, options.dtype), options.rows, options.repeats)
    else:
        settings(options.model, options.rounds, options.cases, options.repeats)


if __name__ == "__main__":
    main()
