"""Where an iteration's time goes, part by part, beside the least that each part could take.

    python -m benchmarks.breakdown [model] [--dtype float32] [--repeats 7] [--cases 1 8 16 32 0]

Decode of 1, 8, 16 and 32 sequences of context 256, and a prefill of 256 tokens (case 0). The parts
of the model are compiled one by one at the shapes of the engine's programs, all layers in a scan as
there; `schedule`, `commit` and the whole step are timed in a serving engine, and `host` is what the
step takes beyond them. Parts take turns, and each figure is a median of repeats, as CPU seconds of
this process and as wall time. `rest` is what the whole program takes beyond its parts.

A floor is bytes over the machine's reading rate or operations over its rate of matrix products,
whichever is longer. Both rates are measured in the same run, per CPU second, so that a machine that
others use as well gives the same ratio.
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

import cbjax.engine.loop as engine_loop
from cbjax import policies
from cbjax.core.batch import IterationBatch
from cbjax.core.ladder import Ladder, Rung
from cbjax.engine import Engine
from cbjax.models import LoadedModel, load_model
from cbjax.models.attention import paged_attention
from cbjax.models.config import ModelConfig
from cbjax.models.layers import product, rms_norm, rotate, rotation
from cbjax.models.layout import OneOf
from pallas_kernels.kv_write.api import new_kv_cache

CONTEXT, BLOCK_SIZE, SEATS, LONGEST = 256, 16, 32, 512
MATRICES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True)
class Row:
    """One part of one case; seconds per iteration; a floor of 0: nothing that must be done."""

    case: str
    part: str
    cpu_s: float
    wall_s: float
    floor_s: float


def rates(dtype: str) -> tuple[float, float]:
    """Bytes read, and operations of a matrix product, per CPU second: the best of several."""
    array, side = jnp.ones(1 << 26, jnp.float32), 1536
    square = jnp.ones((side, side), dtype)
    total = jax.jit(jnp.sum)
    dot = jax.jit(partial(jnp.dot, preferred_element_type=jnp.float32))
    calls = [lambda: total(array), lambda: dot(square, square)]
    read, multiplied = (min(cpu for cpu, _ in one) for one in in_turn(calls, 7))
    return array.nbytes / read, 2 * side**3 / multiplied


def in_turn(calls: list[Callable], repeats: int) -> list[list[tuple[float, float]]]:
    """CPU and wall seconds of each call, A B A B, after one of each that is not counted."""
    times: list[list[tuple[float, float]]] = [[] for _ in calls]
    for turn in range(repeats + 1):
        for kept, call in zip(times, calls, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(call())
            spent = time.process_time() - cpu, time.perf_counter() - wall
            if turn:
                kept.append(spent)
    return times


def batch_of(tokens: int, sequences: int, decode: bool) -> IterationBatch:
    """Decodes at the context's end, or one prefill of `tokens` in a batch of `sequences` seats."""
    width = LONGEST // BLOCK_SIZE
    live = CONTEXT // BLOCK_SIZE
    tables = np.full((sequences, width), -1, np.int32)
    used = sequences if decode else 1
    tables[:used, :live] = np.arange(used * live).reshape(used, live)
    owner = np.arange(sequences) if decode else np.zeros(tokens, int)
    position = np.full(tokens, CONTEXT - 1) if decode else np.arange(tokens)
    lengths = np.where(np.arange(sequences) < used, CONTEXT, 0)
    starts = np.arange(sequences + 1)
    starts = starts if decode else np.minimum(starts, 1) * tokens
    numbers = dict(
        token_ids=np.arange(tokens), positions=position, sequences=owner,
        write_blocks=tables[owner, position // BLOCK_SIZE], write_offsets=position % BLOCK_SIZE,
        query_starts=starts, context_lengths=lengths, block_tables=tables,
        sample_tokens=np.arange(sequences) if decode else np.full(sequences, tokens - 1),
        rows=np.arange(sequences), num_tokens=np.array(tokens), num_sequences=np.array(used),
    )
    arrays = {name: jnp.asarray(value, jnp.int32) for name, value in numbers.items()}
    return IterationBatch(sampled=jnp.arange(sequences) < used, **arrays)


def multiply(config: ModelConfig, layers: dict, x: jax.Array) -> jax.Array:
    """The products of all layers, each fed by the one before; nothing else."""
    heads, groups, dim = config.num_heads, config.num_kv_heads, config.head_dim

    def body(x, at):
        index, slices = at
        one = {n: OneOf(layers[n], index) if n not in slices else slices[n] for n in MATRICES}
        fused = product(x, one["qkv"]).reshape(len(x), -1, dim)
        q, k, v = jnp.split(fused, (heads, heads + groups), axis=1)
        mixed = q.reshape(len(x), groups, -1, dim) + (k + v)[:, :, None]
        y = product(mixed.reshape(len(x), -1), one["output"])
        gate, up = jnp.split(product(y, one["gate_up"]), 2, axis=-1)
        return product(gate + up, one["down"]), None

    stacked = {name: layers[name] for name in MATRICES if not isinstance(layers[name], tuple)}
    return jax.lax.scan(body, x, (jnp.arange(config.num_layers), stacked))[0]


def attend(config: ModelConfig, batch: IterationBatch, x, keys, values):
    """KV writes and attention of all layers; the cache goes in and out."""
    tokens, dim = batch.token_ids.shape[0], config.head_dim
    k = jnp.zeros((tokens, config.num_kv_heads, dim))

    def body(carry, layer):
        q, keys, values = carry
        return paged_attention(q, k, k, keys, values, layer, batch), None

    q = jnp.zeros((tokens, config.num_heads, dim)) + x[:, :1, None]
    return jax.lax.scan(body, (q, keys, values), jnp.arange(config.num_layers))[0]


def between(config: ModelConfig, layers: dict, batch: IterationBatch, x: jax.Array) -> jax.Array:
    """What stands between the products: norms, rotations, the gate, the residual sums."""
    heads = config.num_heads + config.num_kv_heads
    turn = rotation(config, batch.positions)
    wide = jnp.zeros((x.shape[0], config.ffn_size))

    def body(carry, gains):
        x, wide = carry
        y = rms_norm(x, gains[0], config.norm_eps)
        turned = rotate(jnp.resize(y, (x.shape[0], heads, config.head_dim)), turn)
        x = x + turned.reshape(x.shape[0], -1)[:, : x.shape[1]]
        y = rms_norm(x, gains[1], config.norm_eps)
        wide = jax.nn.silu(wide) * (wide + y[:, :1])
        return (x + wide[:, : x.shape[1]], wide), None

    return jax.lax.scan(body, (x, wide), (layers["attention_norm"], layers["ffn_norm"]))[0]


def head(config: ModelConfig, weights: dict, batch: IterationBatch, x: jax.Array) -> jax.Array:
    """Final norm and logits of the sampled rows, padding of the rung included."""
    x = rms_norm(x[batch.sample_tokens], weights["final_norm"], config.norm_eps)
    return product(x, weights["embedding" if config.tied else "head"])


def parts_of(model: LoadedModel, dtype: str, tokens: int, sequences: int, decode: bool) -> dict:
    """Compiled part -> call."""
    config, weights = model.config, model.weights
    batch = batch_of(tokens, sequences, decode)
    x = jnp.ones((tokens, config.hidden_size))
    cache = new_kv_cache(
        config.num_layers, SEATS * LONGEST // BLOCK_SIZE, config.num_kv_heads, BLOCK_SIZE,
        config.head_dim, dtype,
    )
    step = jax.jit(partial(attend, config), donate_argnums=(2, 3))
    held = list(cache)

    def attention():
        mixed, *held[:] = step(batch, x, *held)
        return mixed

    dots = jax.jit(partial(multiply, config))
    rest = jax.jit(partial(between, config))
    logits = jax.jit(partial(head, config))
    return {
        "matmul": lambda: dots(weights["layers"], x),
        "attention": attention,
        "norm, rope, gate": lambda: rest(weights["layers"], batch, x),
        "head": lambda: logits(weights, batch, x),
    }


def floors(model: LoadedModel, speed: tuple, tokens: int, sequences: int, decode: bool) -> dict:
    """Part -> CPU seconds that it cannot go below."""
    config, (read, multiplied) = model.config, speed
    item = model.weights["embedding"].dtype.itemsize
    layers = [model.weights["layers"][name] for name in MATRICES]
    size = sum(leaf.size for leaf in jax.tree.leaves(layers))
    heads = config.num_heads * config.head_dim
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    contexts = sequences if decode else 1
    pairs = tokens * CONTEXT if decode else tokens * (tokens + 1) // 2
    vocabulary = config.vocab_size * config.hidden_size
    stream = tokens * config.num_layers * (5 * config.hidden_size + 3 * config.ffn_size + heads)
    mixing = 4 * pairs * heads * config.num_layers  # operations: scores, and sums of values
    return {
        "matmul": max(size * item / read, 2 * tokens * size / multiplied),
        "attention": max(contexts * CONTEXT * kv * item / read, mixing / multiplied),
        "norm, rope, gate": 4 * stream / read,
        "head": max(vocabulary * item / read, 2 * contexts * vocabulary / multiplied),
        "sampling": contexts * config.vocab_size * 4 / read,
    }


def serving(engine: Engine, prompts: list, repeats: int, decode: bool) -> dict:
    """Step, execute, schedule and commit of a serving engine: name -> (CPU, wall) of each step."""
    kept: dict[str, list] = {name: [] for name in ("execute", "schedule", "commit", "step")}

    def watched(name, call):
        def run(*arguments):
            wall, cpu = time.perf_counter(), time.process_time()
            result = jax.block_until_ready(call(*arguments))
            kept[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            return result

        return run

    places = [
        (engine.executor, "execute", "execute"), (engine_loop, "schedule_jit", "schedule"),
        (engine_loop, "commit_jit", "commit"), (engine, "step", "step"),
    ]
    originals = [getattr(where, what) for where, what, _ in places]
    for _ in range(1 if decode else repeats):
        ids = [
            engine.submit(one, max_tokens=200 if decode else 1, ignore_eos=True)
            for one in prompts
        ]
        while decode and not all(engine.requests[one].token_ids for one in ids):
            engine.step()
        for (where, what, name), original in zip(places, originals, strict=True):
            setattr(where, what, watched(name, original))
        for _ in range(repeats if decode else 1):
            engine.step()
        for (where, what, _), original in zip(places, originals, strict=True):
            setattr(where, what, original)
        for one in ids:
            engine.abort(one)
        engine.step()
    return kept


def measure(model: LoadedModel, engine: Engine, dtype: str, repeats: int, count: int, speed: tuple):
    """The rows of one case: decode of `count` sequences, or the prefill where it is 0."""
    decode = count > 0
    tokens, sequences = (count, count) if decode else (CONTEXT, SEATS)
    parts = parts_of(model, dtype, tokens, sequences, decode)
    logits = jnp.zeros((sequences, model.config.vocab_size))
    parts["sampling"] = _sampling(engine, logits)
    times = dict(zip(parts, in_turn(list(parts.values()), repeats), strict=True))
    random = np.random.default_rng(0)
    prompts = [
        [int(token) for token in random.integers(100, model.tokenizer.vocab_size, CONTEXT)]
        for _ in range(max(count, 1))
    ]
    times |= serving(engine, prompts, repeats, decode)
    medians = {
        name: np.array([statistics.median(column) for column in zip(*one, strict=True)])
        for name, one in times.items()
    }
    medians["rest"] = medians["execute"] - sum(medians[name] for name in parts)
    medians["host"] = medians["step"] - sum(medians[n] for n in ("execute", "schedule", "commit"))
    least = floors(model, speed, tokens, sequences, decode)
    least["execute"] = least["step"] = sum(least.values())
    case = f"decode, {count} sequences" if decode else f"prefill, {CONTEXT} tokens"
    order = (*parts, "rest", "execute", "schedule", "commit", "host", "step")
    return [Row(case, name, *map(float, medians[name]), least.get(name, 0.0)) for name in order]


def _sampling(engine: Engine, logits: jax.Array) -> Callable:
    from cbjax.engine.step_programs import sample_step

    rows = jnp.arange(logits.shape[0])
    outputs = jnp.zeros(engine.limits.rows, jnp.int32)
    return lambda: sample_step(
        logits, rows, outputs, engine.executor.params,
        vocab_size=engine.model.tokenizer.vocab_size, greedy_only=True,
    )


def main() -> None:
    """Measure, print the table and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", nargs="+", type=int, default=[1, 8, 16, SEATS, 0])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/breakdown.json"))
    options = parser.parse_args()

    model = load_model(options.model, options.dtype)
    rungs = {Rung(n, n) for n in options.cases if n} | {Rung(CONTEXT, SEATS)}
    engine = Engine(
        model, dtype=options.dtype, block_size=BLOCK_SIZE, max_length=LONGEST,
        policy=policies.vllm(max_num_batched_tokens=CONTEXT, max_num_seqs=SEATS),
        num_blocks=SEATS * LONGEST // BLOCK_SIZE, ladder=Ladder(tuple(sorted(rungs))),
    )
    engine.compile()
    speed = rates(options.dtype)
    print(f"per CPU second: {speed[0] / 1e9:.1f} GB read, {speed[1] / 1e9:.0f} GFLOP of products")
    rows = []
    for count in options.cases:
        measured = measure(model, engine, options.dtype, options.repeats, count, speed)
        whole = next(row.cpu_s for row in measured if row.part == "step")
        print(f"\n{measured[0].case:22}{'CPU ms':>9}{'share':>8}{'wall ms':>9}{'floor':>9}{'x':>7}")
        for row in measured:
            ratio = f"{row.cpu_s / row.floor_s:.1f}" if row.floor_s else "-"
            print(
                f"  {row.part:20}{row.cpu_s * 1e3:9.2f}{row.cpu_s / whole:8.1%}"
                f"{row.wall_s * 1e3:9.2f}{row.floor_s * 1e3:9.2f}{ratio:>7}", flush=True,
            )
        rows += measured
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = dict(jax=jax.__version__, read=speed[0], multiplied=speed[1], dtype=options.dtype)
    options.out.write_text(json.dumps(dict(machine=machine, rows=[asdict(row) for row in rows])))
    print(f"rows: {options.out}")


if __name__ == "__main__":
    main()
