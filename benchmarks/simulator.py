"""CPU time of simulating a stream of requests, on one core, compilation apart.

    python -m benchmarks.simulator [--requests 1000 10000] [--rates 20 50] [--repeats 5]

Poisson arrivals; prompts log-normal with median 200 and sigma 0.9 in 4..2000, outputs with median
150 and sigma 0.8 in 1..1000; vLLM's policy with 128 seats and a budget of 512 tokens, 2,000 KV
blocks of 16; an iteration takes 4 ms + 20 µs per token. 20 requests/s is an ordinary load, 50/s
saturates the system. Each figure is the median of repeats, as process CPU time, with the plain
loop (one iteration a turn) beside the leaping one, whose results must be equal. `--load` shows what
leaping gains from idle to saturation, `--sweep` that many settings (rates and budgets) against as
many single runs. Writes `results/benchmarks/simulator.json`; `experiments/leaps.py` draws the gain.

Vidur simulates the same requests with the same step times if it is there, in an environment of its
own (Python 3.10 to 3.12, 1.3 GB):

    python3 -m venv .venv-vidur && .venv-vidur/bin/pip install vidur==0.0.26
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

# One core and one thread, before jax starts its own.
if hasattr(os, "sched_setaffinity") and "--on-all-cores" not in sys.argv:
    ALL_CORES = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ALL_CORES)})

import jax
import numpy as np

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.sizing import limits_for
from cbjax.machine import cores
from cbjax.simulate import (
    Setting,
    Simulated,
    costs,
    simulate,
    simulate_many,
    stream_of_columns,
)

ON_ALL_CORES = "--on-all-cores"
SEATS, BUDGET, BLOCKS, BLOCK_SIZE, LONGEST = 128, 512, 2000, 16, 3000
POLICY = policies.vllm(max_num_batched_tokens=BUDGET, max_num_seqs=SEATS)
LIMITS = limits_for(
    POLICY, block_size=BLOCK_SIZE, num_blocks=BLOCKS, max_length=LONGEST, tables=False
)
SYSTEM = system(LIMITS, block_size=BLOCK_SIZE, num_blocks=BLOCKS, max_length=LONGEST)
BASE_S, PER_TOKEN_S = 0.004, 20e-6
COST = costs.linear(base_s=BASE_S, per_token_s=PER_TOKEN_S)
COMPARED = ("mean_ttft_s", "p95_ttft_s", "mean_e2e_s", "p95_e2e_s")


def columns(requests: int, rate: float, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Arrival seconds, prompt and output tokens, as the module describes."""
    random = np.random.default_rng(seed)

    def lengths(median: float, sigma: float, low: int, high: int) -> np.ndarray:
        drawn = random.lognormal(np.log(median), sigma, requests)
        return np.clip(np.round(drawn), low, high).astype(np.int32)

    arrival = np.cumsum(random.exponential(1.0, requests)) / rate
    return arrival, lengths(200, 0.9, 4, 2000), lengths(150, 0.8, 1, 1000)


def timed(repeats: int, **options) -> tuple[float, Simulated]:
    """Median CPU seconds of a simulation, and its result."""
    spent = []
    for _ in range(repeats):
        begin = time.process_time()
        done = simulate(
            policy=POLICY, cost=COST, limits=LIMITS, system=SYSTEM, log=False, **options
        )
        spent.append(time.process_time() - begin)
    return statistics.median(spent), done


def measure(requests: int, rate: float, repeats: int) -> dict:
    """One row: leaping and plain, and what was simulated."""
    workload = stream_of_columns(*columns(requests, rate), LIMITS)
    begin = time.process_time()
    timed(1, workload=workload)
    first_s = time.process_time() - begin
    leap_s, leaped = timed(repeats, workload=workload)
    plain_s, plain = timed(max(repeats // 2, 1), workload=workload, leap=False)
    if not np.array_equal(leaped.kept, plain.kept) or not np.array_equal(leaped.gaps, plain.gaps):
        raise AssertionError("the leaping loop and the plain one differ")
    times = leaped.kept.astype(np.int64)
    arrival, admitted, first, end = (
        times[:, place] + times[:, place + 1] / 1e9 for place in (0, 4, 6, 8)
    )
    return dict(
        requests=requests, rate=rate, leap_s=leap_s, plain_s=plain_s, first_call_s=first_s,
        iterations=leaped.iteration_count, turns=leaped.turns, simulated_s=float(end.max()),
        mean_running=float(np.sum(end - admitted) / end.max()),
        mean_ttft_s=float(np.mean(first - arrival)), mean_e2e_s=float(np.mean(end - arrival)),
        p95_ttft_s=float(np.percentile(first - arrival, 95)),
        p95_e2e_s=float(np.percentile(end - arrival, 95)),
        preemptions=int(times[:, 14].sum()),
    )


def settings_of(count: int, requests: int) -> list[Setting]:
    """So many settings: rates from 10 to 24 per second, budgets from 256 tokens on."""
    arrival, prompt, output = columns(requests, 1.0)
    settings = []
    for number in range(count):
        rate, budget = 10 + number % 8 * 2.0, 256 + 32 * (number // 8 % 9)
        workload = stream_of_columns(arrival / rate, prompt, output, LIMITS)
        policy = replace(POLICY, knobs=POLICY.knobs | {"max_num_batched_tokens": budget})
        settings.append(Setting(workload, policy, COST, SYSTEM))
    return settings


def together(settings: list[Setting]) -> tuple[float, float]:
    """CPU and wall seconds of a sweep whose program is compiled."""
    simulate_many(settings[:1], LIMITS)
    begin = time.process_time(), time.perf_counter()
    simulate_many(settings, LIMITS)
    return time.process_time() - begin[0], time.perf_counter() - begin[1]


def sweep(count: int, requests: int) -> dict:
    """A sweep on one core against as many single runs, and on all cores in a process of its own."""
    settings = settings_of(count, requests)
    simulate_many(settings[:1], LIMITS)
    begin = time.process_time()
    for setting in settings:
        simulate(limits=LIMITS, log=False, **vars(setting))
    single = time.process_time() - begin
    cpu, wall = together(settings)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, ALL_CORES)  # what the child starts with
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulator", ON_ALL_CORES, str(count), str(requests)],
        check=True, capture_output=True, text=True,
    )
    return dict(
        settings=count, requests=requests, single_runs_s=single, together_s=cpu,
        ratio=cpu / single, wall_one_core_s=wall, **json.loads(child.stdout.splitlines()[-1]),
    )


def beside_vidur(python: Path, rows: list[dict], repeats: int) -> list[dict] | None:
    """Vidur's figures of the same requests, and how much longer it took; None if it is absent."""
    if not python.exists():
        print(f"Vidur: absent (there is no {python}; the module's first lines say how to get it)")
        return None
    print("Vidur 0.0.26 on the same requests, step times and core; its event loop only")
    print(f"{'requests':>8} {'rate/s':>6} {'Vidur s':>8} {'ours s':>7} {'ratio':>6} "
          f"{'preempted':>15}  " + "  ".join(f"{name:>15}" for name in COMPARED))
    found = []
    for row in rows:
        arrival_s, prompt, output = columns(row["requests"], row["rate"])
        with tempfile.TemporaryDirectory() as folder:
            given = Path(folder) / "requests.npz"
            np.savez(
                given, arrival_s=arrival_s, prompt=prompt, output=output, base_s=BASE_S,
                per_token_s=PER_TOKEN_S, block_size=BLOCK_SIZE, num_blocks=BLOCKS, seats=SEATS,
                budget=BUDGET, repeats=repeats,
            )
            script = Path(__file__).with_name("vidur_side.py")
            child = subprocess.run(
                [python.absolute(), script, given], capture_output=True, text=True, cwd=folder
            )
        if child.returncode:
            raise RuntimeError(f"{python} benchmarks/vidur_side.py failed: {child.stderr[-800:]}")
        theirs = json.loads(child.stdout.splitlines()[-1])
        ratio = theirs["cpu_s"] / row["leap_s"]
        both = [f"{theirs[name]:.4g} / {row[name]:.4g}" for name in COMPARED]
        print(f"{row['requests']:>8} {row['rate']:>6g} {theirs['cpu_s']:>8.2f} "
              f"{row['leap_s']:>7.3f} {ratio:>5.0f}x "
              f"{theirs['preemptions']:>6} / {row['preemptions']:>6}  "
              + "  ".join(f"{pair:>15}" for pair in both), flush=True)
        found.append(dict(requests=row["requests"], rate=row["rate"], ratio=ratio, **theirs))
    return found


def main() -> None:
    """Measure all, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--rates", type=float, nargs="+", default=[20.0, 50.0])
    parser.add_argument("--load", type=float, nargs="*", default=[0.3, 1, 2, 5, 10, 15, 30, 40])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sweep", type=int, default=64)
    parser.add_argument("--vidur", type=Path, default=Path(".venv-vidur/bin/python"))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/simulator.json"))
    parser.add_argument(ON_ALL_CORES, type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.on_all_cores:
        wall = together(settings_of(*given.on_all_cores))[1]
        print(json.dumps(dict(wall_all_cores_s=wall, cores=cores())))
        return
    print("CPU seconds on one core, medians; vllm policy, cost 4 ms + 20 us per token")
    print(f"{'requests':>8} {'rate/s':>6} {'running':>7} {'leap s':>7} {'plain s':>8} {'gain':>5} "
          f"{'iterations':>10} {'turns':>7} {'us/turn':>7} {'mean TTFT':>9} {'mean E2E':>8} "
          f"{'preempted':>9}")
    wanted = [(count, rate) for rate in given.rates for count in given.requests]
    wanted += [(min(given.requests), rate) for rate in given.load]
    rows = []
    for count, rate in wanted:
        row = measure(count, rate, given.repeats)
        rows.append(row)
        print(
            f"{count:>8} {rate:>6g} {row['mean_running']:>7.1f} {row['leap_s']:>7.3f} "
            f"{row['plain_s']:>8.3f} "
            f"{row['plain_s'] / row['leap_s']:>4.1f}x {row['iterations']:>10} {row['turns']:>7} "
            f"{row['leap_s'] / row['turns'] * 1e6:>7.1f} {row['mean_ttft_s']:>9.4f} "
            f"{row['mean_e2e_s']:>8.3f} {row['preemptions']:>9}", flush=True,
        )
    print(f"first call, compilation included: {rows[0]['first_call_s']:.1f} s")
    swept = sweep(given.sweep, 1000) if given.sweep else None
    if swept:
        print(
            f"{swept['settings']} settings of {swept['requests']} requests: "
            f"{swept['together_s']:.2f} s CPU together, {swept['single_runs_s']:.2f} s one by one "
            f"({swept['ratio']:.2f}x); wall {swept['wall_one_core_s']:.2f} s on one core, "
            f"{swept['wall_all_cores_s']:.2f} s on {swept['cores']}"
        )
    same = rows[: len(given.rates) * len(given.requests)]
    vidur = beside_vidur(given.vidur, same, max(given.repeats // 2, 1))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(
        dict(jax=jax.__version__, rows=rows, sweep=swept, vidur=vidur), indent=1
    ))
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
