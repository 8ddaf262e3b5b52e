"""CPU time of scheduling one iteration under every policy, beside `vllm` in the same run.

    python -m benchmarks.policies [--seats 32 128 512] [--iterations 1000] [--repeats 5]

The loop and the "steady" stream of `benchmarks.scheduler`; all policies take turns in each repeat,
so that a noisy moment meets them all. Every policy has its own defaults but for seats and budget.
Figures are process CPU time, medians of repeats. Writes `results/benchmarks/policies.json`.
"""

import argparse
import json
import statistics
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.scheduler import (
    BUDGET,
    MAX_LENGTH,
    MEAN_OUTPUT,
    in_loop,
    numbers_of,
    padded,
    seconds_of,
    stream,
)
from cbjax import policies
from cbjax.core.policy import Policy
from cbjax.core.state import initial_state

WARM, LOAD = 200, 0.9


def policy_of(name: str, seats: int) -> Policy:
    """The policy with the seats and the budget of the comparison."""
    build = policies.get(name)
    default = build()
    knobs = {default.seats: seats}
    if default.budget:
        knobs[default.budget] = BUDGET
    return build(**knobs)


def measure(seats: int, iterations: int, repeats: int) -> list[dict]:
    """A row per policy: microseconds of an iteration, and how often vllm's."""
    limits, numbers = numbers_of(seats, "steady")
    total = WARM + iterations * repeats
    requests = padded(stream(seats, int(total * seats * LOAD / MEAN_OUTPUT * 1.5) + 1000, LOAD))
    served = {}
    for name in policies.names:
        policy = policy_of(name, seats)
        state = initial_state(policy, limits, numbers)
        start = jnp.int32(0)
        carry = in_loop(policy, state, requests, start, start, jnp.int32(WARM), limits)
        served[name] = (policy, carry[:3])
    spent_s: dict[str, list[float]] = {name: [] for name in served}
    tokens = dict.fromkeys(served, 0)
    for _ in range(repeats):
        for name, (policy, carry) in served.items():
            spent, result = seconds_of(
                lambda policy=policy, carry=carry: jax.block_until_ready(
                    in_loop(policy, *_arguments(carry, requests), jnp.int32(iterations), limits)
                )
            )
            served[name] = (policy, result[:3])
            spent_s[name].append(spent / iterations)
            tokens[name] += int(result[3][0])
    base = statistics.median(spent_s["vllm"])
    return [
        dict(
            seats=seats, policy=name, loop_us=1e6 * statistics.median(values),
            over_vllm=statistics.median(values) / base,
            scheduled_tokens=tokens[name] / (iterations * repeats),
        )
        for name, values in spent_s.items()
    ]


def _arguments(carry, requests):
    state, first, now = carry
    return state, requests, first, now


def main() -> None:
    """Measure all, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seats", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/policies.json"))
    given = parser.parse_args()
    print(f"CPU time per iteration (schedule + commit), one core, medians; longest {MAX_LENGTH}")
    print(f"{'policy':<14}" + "".join(f"{seats:>9} us {'/vllm':>7}" for seats in given.seats))
    rows = [row for seats in given.seats for row in measure(seats, given.iterations, given.repeats)]
    for name in policies.names:
        cells = [row for row in rows if row["policy"] == name]
        print(f"{name:<14}" + "".join(
            f"{row['loop_us']:>12.1f} {row['over_vllm']:>6.2f}x" for row in cells
        ))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    device = jax.devices()[0].device_kind
    given.out.write_text(
        json.dumps(dict(jax=jax.__version__, device=device, rows=rows), indent=1)
    )
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
