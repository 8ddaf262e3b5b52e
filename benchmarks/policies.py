"""CPU time of scheduling one iteration under every policy, beside `vllm` in the same run.

    python -m benchmarks.policies [--seats 32 128 512] [--iterations 1000] [--repeats 5]

The loop and the "steady" stream of `benchmarks.scheduler`; all policies take turns in each repeat,
so that a noisy moment meets them all. Every policy has its own defaults but for seats and budget.
Figures are process CPU time, medians of repeats. Writes `results/benchmarks/policies.json`.
"""

import statistics
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.scheduler import (
    BUDGET,
    MAX_LENGTH,
    arguments,
    in_loop,
    numbers_of,
    padded,
    requests_of,
    seconds_of,
    write,
)
from cbjax import policies
from cbjax.core.state import initial_state

WARM = 200


def measure(seats: int, iterations: int, repeats: int) -> list[dict]:
    """A row per policy: microseconds of an iteration, and how often vllm's."""
    limits, numbers = numbers_of(seats, "steady")
    requests = padded(requests_of(seats, "steady", WARM + iterations * repeats))
    choices = {name: policies.sized(name, seats, BUDGET) for name in policies.names}

    def go_on(name: str, state, first, now, count: int):
        return jax.block_until_ready(
            in_loop(choices[name], state, requests, first, now, jnp.int32(count), limits)
        )

    start = jnp.int32(0)
    reached = {
        name: go_on(name, initial_state(policy, limits, numbers), start, start, WARM)
        for name, policy in choices.items()
    }
    spent_s: dict[str, list[float]] = {name: [] for name in choices}
    tokens = dict.fromkeys(choices, 0)
    for _ in range(repeats):
        for name in choices:
            *carry, _ = reached[name]
            spent, reached[name] = seconds_of(partial(go_on, name, *carry, iterations))
            spent_s[name].append(spent / iterations)
            tokens[name] += int(reached[name][3][0])
    base = statistics.median(spent_s["vllm"])
    return [
        dict(
            seats=seats, policy=name, loop_us=1e6 * statistics.median(values),
            over_vllm=statistics.median(values) / base,
            scheduled_tokens=tokens[name] / (iterations * repeats),
        )
        for name, values in spent_s.items()
    ]


def main() -> None:
    """Measure all, print the table, write the file."""
    given = arguments(__doc__, "policies", iterations=1000)
    print(f"CPU time per iteration (schedule + commit), one core, medians; longest {MAX_LENGTH}")
    print(f"{'policy':<14}" + "".join(f"{seats:>9} us {'/vllm':>7}" for seats in given.seats))
    rows = [row for seats in given.seats for row in measure(seats, given.iterations, given.repeats)]
    for name in policies.names:
        cells = [row for row in rows if row["policy"] == name]
        print(f"{name:<14}" + "".join(
            f"{row['loop_us']:>12.1f} {row['over_vllm']:>6.2f}x" for row in cells
        ))
    write(given.out, rows)


if __name__ == "__main__":
    main()
