"""CPU time of scheduling one iteration: inside one compiled loop, per host call, in plain Python.

    python -m benchmarks.scheduler [--seats 32 128 512] [--iterations 2000] [--repeats 5]

The same stream of requests is served by the same policy in three ways, in one process on one core:

* loop: `schedule` and `commit` inside one `lax.while_loop`, compiled as the simulator compiles it
  (into one kernel, see `cbjax/simulate/compiler.py`),
* calls: one call of the two compiled verbs per iteration, with numpy arrays in and numbers out,
* oracle: the plain-Python scheduler that the tests hold the array policy against.

Two streams: "steady" (decodes, Poisson arrivals, no preemption) and "pressure" (a pool so small
that requests are preempted). Figures are process CPU time per iteration, medians of repeats; what
the three did must be equal. Writes `results/benchmarks/scheduler.json`.
"""

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

# One core and one thread, before jax starts its own.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cbjax import policies
from cbjax.core.commit import commit, commit_jit
from cbjax.core.inbox import Inbox, empty_inbox
from cbjax.core.limits import Limits, System, system
from cbjax.core.rows import Status
from cbjax.core.schedule import schedule, schedule_jit
from cbjax.core.state import initial_state
from cbjax.core.time import Time
from cbjax.simulate import compiler
from tests.policies.oracles.vllm import Vllm

BLOCK_SIZE, MAX_LENGTH, BUDGET, WINDOW, INBOX = 16, 1024, 2048, 64, 16
MEAN_PROMPT, MEAN_OUTPUT = 200, 100


def stream(seats: int, requests: int, load: float, seed: int = 0) -> dict[str, np.ndarray]:
    """Requests with log-normal lengths; `load` is the share of the seats they would keep busy."""
    random = np.random.default_rng(seed)

    def lengths(mean: int, most: int) -> np.ndarray:
        drawn = random.lognormal(np.log(mean) - 0.32, 0.8, requests)
        return np.clip(drawn, 1, most).astype(np.int32)

    gaps = random.exponential(MEAN_OUTPUT / (seats * load), requests)
    return dict(
        arrival=np.floor(np.cumsum(gaps)).astype(np.int32),
        prompt=lengths(MEAN_PROMPT, 600), max_tokens=lengths(MEAN_OUTPUT, 400),
    )


def padded(requests: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The stream on the device, with a tail that never arrives behind it."""
    never = np.iinfo(np.int32).max
    return {
        name: jnp.asarray(
            np.concatenate([values, np.full(INBOX, never if name == "arrival" else 0, np.int32)])
        )
        for name, values in requests.items()
    }


def _moment(now) -> Time:
    return Time(jnp.int32(now), jnp.int32(0))


def _inbox(requests, state, first, now, limits: Limits) -> Inbox:
    """What has arrived and finds a free row; a window over the stream."""
    window = {
        name: lax.dynamic_slice(values, (first,), (INBOX,)) for name, values in requests.items()
    }
    free = jnp.sum(state.rows.status == Status.FREE)
    count = jnp.minimum(jnp.sum(window["arrival"] <= now), free)
    empty = jax.tree.map(jnp.asarray, empty_inbox(limits))
    return Inbox(
        count=count, request=first + jnp.arange(INBOX), group=empty.group, prompt=window["prompt"],
        known=window["prompt"], max_tokens=window["max_tokens"], predicted=empty.predicted,
        priority=empty.priority, arrival=Time(window["arrival"], empty.arrival.nanoseconds),
        deadline=empty.deadline, token_ids=empty.token_ids, abort=empty.abort,
        backlog=jnp.int32(0), clock=_moment(now),
    )


@partial(jax.jit, static_argnames=("limits",), compiler_options=compiler.options())
def in_loop(policy, state, requests, first, start, count, limits: Limits):
    """`count` iterations; returns the state, the next request and what was done."""
    tokens, stopped = jnp.zeros(limits.rows, jnp.int32), jnp.zeros(limits.rows, bool)

    def step(carry):
        state, first, now, done = carry
        inbox = _inbox(requests, state, first, now, limits)
        state, plan = schedule(policy, state, inbox, limits)
        state, emitted = commit(state, plan, tokens, stopped, _moment(now + 1))
        done = done + jnp.stack([plan.scheduled_tokens, plan.num_sequences, plan.num_running])
        return state, first + inbox.count, now + 1, done

    return lax.while_loop(
        lambda carry: carry[2] < start + count, step, (state, first, start, jnp.zeros(3, jnp.int32))
    )


class Calls:
    """The compiled verbs, one call each per iteration, fed from the host."""

    def __init__(self, policy, state, requests, first: int, now: int, limits: Limits) -> None:
        self.policy, self.state, self.limits = policy, state, limits
        self.requests, self.first, self.now = requests, first, now
        self.free = int(jnp.sum(state.rows.status == Status.FREE))
        self.tokens = np.zeros(limits.rows, np.int32)
        self.stopped = np.zeros(limits.rows, bool)
        self.inbox = empty_inbox(limits)

    def run(self, iterations: int) -> np.ndarray:
        done = np.zeros(3, np.int64)
        for _ in range(iterations):
            done += self.step()
        return done

    def step(self) -> np.ndarray:
        inbox, first, arrival = self.inbox, self.first, self.requests["arrival"]
        count = 0
        while count < min(INBOX, self.free) and arrival[first + count] <= self.now:
            for name in ("prompt", "max_tokens"):
                getattr(inbox, name)[count] = self.requests[name][first + count]
            inbox.known[count] = inbox.prompt[count]
            inbox.request[count] = first + count
            count += 1
        offered = Inbox(**vars(inbox) | dict(count=np.int32(count), clock=self._clock()))
        self.state, plan = schedule_jit(self.policy, self.state, offered, self.limits)
        self.now += 1
        self.state, emitted = commit_jit(
            self.state, plan, self.tokens, self.stopped, self._clock()
        )
        plan, emitted = jax.device_get((plan, emitted))
        self.first += count
        self.free = int(plan.free_rows) + int(np.sum(emitted.finished != 0))
        return np.array([plan.scheduled_tokens, plan.num_sequences, plan.num_running])

    def _clock(self) -> Time:
        return Time(np.int32(self.now), np.int32(0))


class Oracle:
    """The plain-Python scheduler on the same stream, from the start."""

    def __init__(self, requests, seats: int, num_blocks: int) -> None:
        self.scheduler = Vllm(
            BLOCK_SIZE, num_blocks, MAX_LENGTH, BUDGET, max_num_batched_tokens=BUDGET,
            max_num_seqs=seats,
        )
        self.requests = {name: values.tolist() for name, values in requests.items()}
        self.first = self.now = self.admitted = self.preempted = 0
        self.never = dict.fromkeys(range(len(self.requests["arrival"])), 0)

    def run(self, iterations: int) -> np.ndarray:
        done = [0] * 3
        scheduler, arrival = self.scheduler, self.requests["arrival"]
        prompt, max_tokens = self.requests["prompt"], self.requests["max_tokens"]
        for _ in range(iterations):
            while arrival[self.first] <= self.now:
                scheduler.arrive(self.first, prompt[self.first], max_tokens[self.first])
                self.first += 1
            plan = scheduler.schedule()
            done[0] += sum(tokens for _, tokens in plan["scheduled"])
            done[1] += len(plan["scheduled"])
            done[2] += plan["running"]
            self.admitted += len(plan["new"]) + len(plan["resumed"])
            self.preempted += len(plan["preempted"])
            scheduler.finish(self.never)
            self.now += 1
        return np.array(done)


def seconds_of(work) -> tuple[float, np.ndarray]:
    """Process CPU seconds of `work()`, and what it returns."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def numbers_of(seats: int, kind: str) -> tuple[Limits, System]:
    """Limits and numbers of a system: KV for all in a "steady" stream, else half of the mean."""
    longest, mean = MAX_LENGTH // BLOCK_SIZE, -(-(MEAN_PROMPT + MEAN_OUTPUT) // BLOCK_SIZE)
    num_blocks = {"steady": seats * longest, "pressure": max(seats * mean // 2, longest)}[kind]
    limits = Limits(
        seats=seats, window=WINDOW, tokens=BUDGET, blocks=num_blocks,
        blocks_per_sequence=MAX_LENGTH // BLOCK_SIZE, inbox=INBOX,
    )
    return limits, system(
        limits, block_size=BLOCK_SIZE, num_blocks=num_blocks, max_length=MAX_LENGTH
    )


def requests_of(seats: int, kind: str, iterations: int) -> dict[str, np.ndarray]:
    """A stream that is long enough for so many iterations."""
    load = {"steady": 0.9, "pressure": 0.7}[kind]
    return stream(seats, int(iterations * seats * load / MEAN_OUTPUT * 1.5) + 1000, load)


def measure(seats: int, kind: str, iterations: int, repeats: int) -> dict:
    """One row of the table."""
    limits, numbers = numbers_of(seats, kind)
    num_blocks = limits.blocks
    warm = 400
    requests = requests_of(seats, kind, warm + iterations * repeats)
    policy = policies.vllm(max_num_batched_tokens=BUDGET, max_num_seqs=seats)
    state, device = initial_state(policy, limits, numbers), padded(requests)
    first, now = jnp.int32(0), jnp.int32(0)
    state, first, now, _ = in_loop(policy, state, device, first, now, jnp.int32(warm), limits)
    calls = Calls(
        policy, jax.tree.map(jnp.copy, state), requests, int(first), int(now), limits
    )
    calls_warm = calls.run(20)
    oracle = Oracle(requests, seats, num_blocks)
    oracle.run(warm)
    oracle.admitted = oracle.preempted = 0

    loop_s, call_s, oracle_s = [], [], []
    done = np.zeros(3, np.int64)
    in_calls = max(iterations // 10, 50)
    for _ in range(repeats):
        spent, (state, first, now, part) = seconds_of(
            lambda state=state, first=first, now=now: jax.block_until_ready(
                in_loop(policy, state, device, first, now, jnp.int32(iterations), limits)
            )
        )
        loop_s.append(spent / iterations)
        spent, theirs = seconds_of(lambda: oracle.run(iterations))
        oracle_s.append(spent / iterations)
        done += np.asarray(part)
        if not np.array_equal(part, theirs):
            raise AssertionError(f"loop did {part}, oracle {theirs}")
        spent, _ = seconds_of(lambda: calls.run(in_calls))
        call_s.append(spent / in_calls)
    assert calls_warm[0] > 0
    loop, call, plain = map(statistics.median, (loop_s, call_s, oracle_s))
    per_iteration = done / (iterations * repeats)
    return dict(
        seats=seats, kind=kind, num_blocks=num_blocks, loop_us=loop * 1e6, calls_us=call * 1e6,
        oracle_us=plain * 1e6, oracle_over_loop=plain / loop, calls_over_loop=call / loop,
        scheduled_tokens=per_iteration[0], running=per_iteration[2],
        admitted=oracle.admitted / (iterations * repeats),
        preempted=oracle.preempted / (iterations * repeats),
        loop_all_us=[value * 1e6 for value in loop_s],
        oracle_all_us=[value * 1e6 for value in oracle_s],
    )


def arguments(description: str, name: str, iterations: int) -> argparse.Namespace:
    """What the benchmarks of scheduling take from the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seats", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(f"results/benchmarks/{name}.json"))
    return parser.parse_args()


def write(out: Path, rows: list[dict]) -> None:
    """Keep the rows and say where."""
    out.parent.mkdir(parents=True, exist_ok=True)
    device = jax.devices()[0].device_kind
    out.write_text(json.dumps(dict(jax=jax.__version__, device=device, rows=rows), indent=1))
    print(f"written to {out}")


def main() -> None:
    """Measure all, print the table, write the file."""
    given = arguments(__doc__, "scheduler", iterations=2000)
    header = (
        f"{'seats':>5} {'stream':<9} {'running':>7} {'admitted':>8} {'preempted':>9} "
        f"{'loop us':>8} {'calls us':>8} {'oracle us':>9} {'oracle/loop':>11} {'calls/loop':>10}"
    )
    print("CPU time per iteration (schedule + commit), vllm policy, one core, medians")
    print(header)
    table = []
    for seats in given.seats:
        for kind in ("steady", "pressure"):
            row = measure(seats, kind, given.iterations, given.repeats)
            table.append(row)
            print(
                f"{seats:>5} {kind:<9} {row['running']:>7.1f} {row['admitted']:>8.2f} "
                f"{row['preempted']:>9.2f} {row['loop_us']:>8.1f} {row['calls_us']:>8.1f} "
                f"{row['oracle_us']:>9.1f} {row['oracle_over_loop']:>10.1f}x "
                f"{row['calls_over_loop']:>9.1f}x",
                flush=True,
            )
    write(given.out, table)


if __name__ == "__main__":
    main()
