"""From a simulation's integers to the tables of a run, the same as an engine's.

Times become seconds here and nowhere before: `seconds + nanoseconds / 1e9`, as everywhere.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from cbjax.core.ladder import Ladder
from cbjax.core.reasons import FinishReason, LimitedBy, Refusal
from cbjax.core.time import NANOSECONDS
from cbjax.metrics import ITERATION_COLUMNS, MEMORY_COLUMNS, REQUEST_COLUMNS, Tables
from cbjax.simulate import book, histogram, log
from cbjax.simulate.book import NEVER, REFUSED
from cbjax.simulate.simulate import Simulated


def tables(
    done: Simulated, *, class_names: Sequence[str] | None = None,
    priorities: Sequence[int] | None = None,
) -> Tables:
    """The requests and iterations of a simulation; who was given what is not among them.

    Args:
        done: from `simulate`.
        class_names, priorities: of each request, where there are any.

    Returns:
        Tables without `schedule` and without the time of every token; see `cbjax.simulate.replay`
        for those.
    """
    return Tables(
        requests=requests_table(done, class_names, priorities),
        iterations=iterations_table(done), memory=memory_table(done),
    )


def requests_table(
    done: Simulated, class_names: Sequence[str] | None = None,
    priorities: Sequence[int] | None = None,
) -> pl.DataFrame:
    """One row per request, in order of arrival."""
    count = len(done.kept)
    column = {name: done.kept[:, place] for place, name in enumerate(book.COLUMNS)}

    def moment(name: str) -> pl.Series:
        seconds = column[f"{name}_s"]
        values = seconds + column[f"{name}_ns"] / NANOSECONDS
        return pl.Series(np.where(seconds == NEVER, np.nan, values)).fill_nan(None)

    codes = column["reason"].tolist()
    refused = [Refusal(code - REFUSED) if code >= REFUSED else None for code in codes]
    arrival = moment("arrival")
    values: Mapping[str, object] = {
        "request_id": np.arange(count),
        "class": list(class_names) if class_names is not None else [""] * count,
        "priority": list(priorities) if priorities is not None else [0] * count,
        # Who simulates sends on time.
        "scheduled_arrival_s": arrival, "submitted_s": arrival, "visible_s": moment("visible"),
        "admitted_s": moment("admitted"), "first_token_s": moment("first"),
        "finished_s": moment("finished"), "prompt_tokens": done.prompt,
        "output_tokens": column["output_tokens"], "cached_prompt_tokens": column["cached_tokens"],
        "preemptions": column["preemptions"], "swaps": column["swaps"],
        "recomputed_tokens": column["recomputed_tokens"], "max_itl_s": moment("max_gap"),
        "finish_reason": [
            "refused" if refusal else FinishReason(code).word
            for code, refusal in zip(codes, refused, strict=True)
        ],
        "error": [
            f"{refusal.word}: {refusal.sentence}" if refusal else None for refusal in refused
        ],
    }
    schema = {name: kind for name, kind in REQUEST_COLUMNS.items() if name != "token_times_s"}
    # The turns of conversations arrive in an order of their own.
    return pl.DataFrame(values, schema=schema).sort("scheduled_arrival_s", maintain_order=True)


def iterations_table(done: Simulated) -> pl.DataFrame:
    """One row per iteration, those of a leap one by one."""
    column = _columns(done)
    scheduled, prefill = column["scheduled_tokens"], column["prefill_tokens"]
    rung = rungs_of(
        done.rungs, scheduled + column["extra_tokens"], column["sequences"]
    )
    words = np.array([reason.word for reason in LimitedBy])
    padded = np.array([one.tokens for one in done.rungs.rungs])[rung] - scheduled
    values: Mapping[str, object] = {
        "iteration": np.arange(len(scheduled)), "start_s": _seconds(column, "start"),
        "duration_s": _seconds(column, "duration"),
        "host_s": np.full(
            len(scheduled),
            int(done.pace.host.seconds) + int(done.pace.host.nanoseconds) / NANOSECONDS,
        ),
        "rung": [str(one) for one in (done.rungs.rungs[place] for place in rung.tolist())],
        "scheduled_tokens": scheduled, "prefill_tokens": prefill,
        "decode_tokens": scheduled - prefill,
        "padded_tokens": np.maximum(padded, column["extra_tokens"]),
        "running": column["running"], "waiting": column["waiting"], "backlog": column["backlog"],
        "used_blocks": int(done.system.num_blocks) - column["free_blocks"],
        "free_blocks": column["free_blocks"], "preempted": column["preempted"],
        "admitted": column["admitted"], "finished": _told(done, column),
        "limited_by": words[column["limited_by"]].tolist(),
        "repeats": np.ones(len(scheduled), np.int64),
    }
    return pl.DataFrame(values, schema=dict(ITERATION_COLUMNS))


def describe_gaps(done: Simulated) -> dict[str, float | int | None]:
    """The gaps between tokens as `metrics.describe` would, from the histogram; max is exact.

    Every other value is within `histogram.MOST_RELATIVE_ERROR` of the exact one.
    """
    count = int(done.gaps.sum())
    if not count:
        return {**dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max")), "count": 0}
    points = histogram.percentiles_s(done.gaps, np.array([50, 90, 95, 99])).tolist()
    seconds, nanoseconds = (
        done.kept[:, book.COLUMNS.index(f"max_gap_{part}")].astype(np.int64) for part in ("s", "ns")
    )
    longest = int(np.max(np.where(seconds == NEVER, 0, seconds * NANOSECONDS + nanoseconds)))
    mean = float(np.dot(done.gaps, histogram.middles_s()) / count)
    return {
        "mean": mean, **dict(zip(("p50", "p90", "p95", "p99"), points, strict=True)),
        "max": longest / NANOSECONDS, "count": count,
    }


def memory_table(done: Simulated) -> pl.DataFrame:
    """Positions that hold KV, and padding on purpose, per iteration."""
    column = _columns(done)
    count = len(column["live_tokens"])
    return pl.DataFrame({
        "iteration": np.arange(count), "live_tokens": column["live_tokens"],
        "block_size": np.full(count, int(done.system.block_size)),
        "extra_tokens": column["extra_tokens"], "compiled": column["compiled"] > 0,
    }, schema=dict(MEMORY_COLUMNS))


def rungs_of(ladder: Ladder, tokens: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    """Index of the first rung that holds each iteration.

    Raises:
        ValueError: none does.
    """
    chosen = np.full(len(tokens), len(ladder.rungs))
    for index in range(len(ladder.rungs) - 1, -1, -1):
        rung = ladder.rungs[index]
        chosen[(rung.tokens >= tokens) & (rung.sequences >= sequences)] = index
    for place in np.flatnonzero(chosen == len(ladder.rungs))[:1]:
        ladder.choose(int(tokens[place]), int(sequences[place]))
    return chosen


def _told(done: Simulated, column: Mapping[str, np.ndarray]) -> np.ndarray:
    """Requests whose end is told in each iteration: of whole answers when their batch ends."""
    ended = column["finished"]
    if done.deliver_at == "token":
        return ended
    over = column["running"] == ended
    so_far = np.where(over, np.cumsum(ended), 0)
    return np.where(over, so_far - np.maximum.accumulate(np.append(0, so_far[:-1])), 0)


def _columns(done: Simulated) -> dict[str, np.ndarray]:
    """The log by column, one value per iteration.

    What moved on or off its seat since the iteration before counts for the next.
    """
    rows = done.iterations.astype(np.int64)
    column = {name: rows[:, place] for place, name in enumerate(log.COLUMNS)}
    computed = column["computed"] > 0
    moved = {
        name: np.diff(np.cumsum(column[name])[computed], prepend=0)
        for name in ("preempted", "admitted")
    }
    return {name: values[computed] for name, values in column.items()} | moved


def _seconds(column: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return column[f"{name}_s"] + column[f"{name}_ns"] / NANOSECONDS
