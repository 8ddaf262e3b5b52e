"""How near the engine's iterations are to what the machine can do.

    python benchmarks/engine.py [model] [--dtype float32] [--repeats 7]

Decode at 1, 8, 16 and 32 sequences of context 256 and prefill of 64, 128 and 256 tokens, on the
model's own compiled programs. Wall and process CPU seconds per iteration (medians of repeats), and
the ratio to the floor measured in the same run: reading weights and live KV once at the machine's
reading bandwidth, or the floating-point operations at its matrix-product rate, whichever is longer.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cbjax import policies
from cbjax.core.ladder import Ladder, Rung
from cbjax.engine import Engine
from cbjax.models import LoadedModel, load_model

CONTEXT = 256
DECODES = (1, 8, 16, 32)
PREFILLS = (64, 128, 256)


@dataclass(frozen=True)
class Row:
    """One measured case; seconds are per iteration."""

    case: str
    tokens: int
    wall_s: float
    cpu_s: float
    floor_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens computed per second of wall time."""
        return self.tokens / self.wall_s


def machine_rates(dtype: str) -> tuple[float, float]:
    """Reading bandwidth (bytes/s) and rate of matrix products (FLOP/s), best of a few runs."""
    array = jnp.ones(1 << 27, jnp.float32)
    total = jax.jit(jnp.sum)
    side = 2048
    square = jnp.ones((side, side), dtype)
    product = jax.jit(partial(jnp.dot, preferred_element_type=jnp.float32))
    bandwidth = array.nbytes / _best(lambda: total(array))
    return bandwidth, 2 * side**3 / _best(lambda: product(square, square))


def _best(run: Callable[[], jax.Array]) -> float:
    jax.block_until_ready(run())
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def measure(engine: Engine, prompts: list[list[int]], repeats: int, decode: bool) -> tuple:
    """Median wall and CPU seconds of the model's share of an iteration.

    Decode: all prompts are prefilled first, then `repeats` iterations are timed. Prefill: the one
    prompt is served `repeats` times and its only prefill iteration is timed.
    """
    timed: list[tuple[float, float]] = []
    execute = engine.executor.execute

    def stopwatch(*arguments):
        wall, cpu = time.perf_counter(), time.process_time()
        result = execute(*arguments)
        timed.append((time.perf_counter() - wall, time.process_time() - cpu))
        return result

    rounds = 1 if decode else repeats
    for _ in range(rounds):
        ids = [
            engine.submit(prompt, max_tokens=200 if decode else 1, ignore_eos=True)
            for prompt in prompts
        ]
        while decode and not all(engine.requests[one].token_ids for one in ids):
            engine.step()
        engine.executor.execute = stopwatch
        for _ in range(repeats if decode else 1):
            engine.step()
        engine.executor.execute = execute
        for one in ids:
            engine.abort(one)
        engine.step()
    return tuple(statistics.median(column) for column in zip(*timed, strict=True))


def floor(model: LoadedModel, rates: tuple[float, float], tokens: int, sequences: int, live: int):
    """Seconds that an iteration cannot go below on this machine in the dtype of the weights."""
    config = model.config
    leaves = jax.tree.leaves(model.weights)
    layers = sum(leaf.size for leaf in jax.tree.leaves(model.weights["layers"]))
    head = config.vocab_size * config.hidden_size
    item = model.weights["embedding"].dtype.itemsize  # the KV cache has the dtype of the weights
    kv_bytes = live * 2 * config.num_layers * config.num_kv_heads * config.head_dim * item
    weight_bytes = sum(leaf.nbytes for leaf in leaves)
    flops = 2 * (tokens * layers + sequences * head)
    return max((weight_bytes + kv_bytes) / rates[0], flops / rates[1])


def main() -> None:
    """Measure, print the table and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/engine.json"))
    options = parser.parse_args()

    model = load_model(options.model, options.dtype)
    rungs = {Rung(n, n) for n in DECODES} | {Rung(n, max(DECODES)) for n in PREFILLS}
    engine = Engine(
        model, dtype=options.dtype,
        policy=policies.vllm(max_num_batched_tokens=256, max_num_seqs=max(DECODES)),
        block_size=16, num_blocks=1024, max_length=512, ladder=Ladder(tuple(sorted(rungs))),
    )
    print(f"compiled {engine.compile().programs} programs in {engine.compiled.seconds:.1f} s")
    rates = machine_rates(options.dtype)
    print(f"reading {rates[0] / 1e9:.1f} GB/s, matrix product {rates[1] / 1e9:.0f} GFLOP/s")
    random = np.random.default_rng(0)

    def prompt(length: int) -> list[int]:
        return [int(token) for token in random.integers(0, model.tokenizer.vocab_size, length)]

    rows = []
    for count in DECODES:
        wall, cpu = measure(engine, [prompt(CONTEXT)] * count, options.repeats, True)
        least = floor(model, rates, count, count, count * CONTEXT)
        rows.append(Row(f"decode, {count} sequences", count, wall, cpu, least))
    for length in PREFILLS:
        wall, cpu = measure(engine, [prompt(length)], options.repeats, False)
        rows.append(Row(f"prefill, {length} tokens", length, wall, cpu, floor(
            model, rates, length, 1, length)))

    print(f"{'case':24}{'tokens/s':>10}{'wall ms':>10}{'CPU ms':>10}{'floor ms':>10}{'x floor':>9}")
    for row in rows:
        print(
            f"{row.case:24}{row.tokens_per_s:10.0f}{row.wall_s * 1e3:10.1f}{row.cpu_s * 1e3:10.1f}"
            f"{row.floor_s * 1e3:10.1f}{row.wall_s / row.floor_s:9.1f}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = dict(jax=jax.__version__, bandwidth=rates[0], flops=rates[1], model=options.model)
    machine["dtype"] = options.dtype
    options.out.write_text(json.dumps(dict(machine=machine, rows=[asdict(r) for r in rows])))
    print(f"rows: {options.out}")


if __name__ == "__main__":
    main()
