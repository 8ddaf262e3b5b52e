"""From the plans of a simulation to a recorder's events: the exact time of every token.

One event per turn, as the engine tells them, so the recorder makes the same tables of both.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from cbjax.core.reasons import FinishReason, LimitedBy, Refusal
from cbjax.core.rows import NO_ROW
from cbjax.core.time import NANOSECONDS
from cbjax.metrics import IterationEvent, Recorder
from cbjax.simulate import book, log
from cbjax.simulate.results import rungs_of
from cbjax.simulate.simulate import Simulated


def replay(
    done: Simulated, recorder: Recorder, *, class_names: Sequence[str] | None = None,
    priorities: Sequence[int] | None = None, deliver_at: str = "token",
) -> None:
    """Tell a recorder of a simulation that kept its plans.

    Args:
        done: from `simulate(..., pages=True)`.
        recorder: receives every request and iteration.
        class_names, priorities: of each request, where there are any.
        deliver_at: of the policy's traits.

    Raises:
        ValueError: the plans were not kept.
    """
    if done.pages is None:
        raise ValueError("the plans of this simulation were not kept: simulate with pages=True")
    refusals = _tell_requests(done, recorder, class_names, priorities)
    held = _HeldBack() if deliver_at == "batch_end" else None
    rows = done.iterations.astype(np.int64)
    column = {name: rows[:, place] for place, name in enumerate(log.COLUMNS)}
    rungs = rungs_of(
        done.rungs, column["scheduled_tokens"] + column["extra_tokens"], column["sequences"]
    )
    leaves, shape = jax.tree.flatten(done.pages)
    for index in range(len(rows)):
        plan, emitted, *_ = jax.tree.unflatten(shape, [leaf[index] for leaf in leaves])
        facts = {name: int(values[index]) for name, values in column.items()}
        # Whoever was refused in this iteration, or since the last one, has left its seat.
        while refusals and refusals[0][0] <= _seconds(facts, "start"):
            _refuse(recorder, *refusals.pop(0))
        recorder.iteration(_event(done, plan, emitted, facts, int(rungs[index]), held))
    for refusal in refusals:
        _refuse(recorder, *refusal)


def _refuse(recorder: Recorder, moment: float, request: int, code: int) -> None:
    refusal = Refusal(code)
    recorder.refused(request, moment, f"{refusal.word}: {refusal.sentence}")


def _tell_requests(
    done, recorder: Recorder, class_names, priorities
) -> list[tuple[float, int, int]]:
    """All that were sent and seen; returns the refusals in order of time."""
    refusals = []
    seconds, nanoseconds = (done.kept[:, book.COLUMNS.index(f"arrival_{part}")].astype(np.int64)
                            for part in ("s", "ns"))
    for request in np.argsort(seconds * NANOSECONDS + nanoseconds, kind="stable").tolist():
        kept = dict(zip(book.COLUMNS, done.kept[request].tolist(), strict=True))
        arrival = _seconds(kept, "arrival")
        recorder.submitted(
            request, class_name=class_names[request] if class_names is not None else "",
            priority=priorities[request] if priorities is not None else 0,
            scheduled_arrival_s=arrival, submitted_s=arrival,
            prompt_tokens=int(done.prompt[request]),
        )
        if kept["visible_s"] != book.NEVER:
            recorder.visible(request, _seconds(kept, "visible"))
        if kept["reason"] >= book.REFUSED:
            refusals.append(
                (_seconds(kept, "finished"), request, kept["reason"] - book.REFUSED)
            )
    return sorted(refusals)


class _HeldBack:
    """Tokens and endings that wait for the end of their batch."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}
        self.finished: list[tuple[int, str]] = []

    def take(self, tokens: list[int], finished: list[tuple[int, str]], over: bool):
        """Add an iteration's; returns what is handed over now."""
        for request in tokens:
            self.tokens[request] = self.tokens.get(request, 0) + 1
        self.finished += finished
        if not over:
            return [], []
        released = list(self.tokens.items()), self.finished
        self.tokens, self.finished = {}, []
        return released


def _event(done: Simulated, plan: Any, emitted: Any, facts, rung: int, held) -> IterationEvent:
    def ids(mask) -> list[int]:
        return plan.requests[np.asarray(mask, bool)].tolist()

    grants = [
        (int(plan.requests[row]), int(tokens), int(fresh), "prefill" if prefill else "decode")
        for row, tokens, fresh, prefill in zip(
            plan.running, plan.grants, plan.fresh, plan.prefilling, strict=True
        )
        if row != NO_ROW and tokens > 0
    ]
    cached = []
    if plan.cached is not None:
        first = plan.admitted & ~plan.resumed
        cached = list(zip(ids(first), plan.cached[first].tolist(), strict=True))
    finished = [
        (int(emitted.requests[row]), FinishReason(int(emitted.finished[row])).word)
        for row in np.flatnonzero(emitted.finished)
    ]
    delivered = None
    if held is not None:
        delivered, finished = held.take(
            ids(emitted.emitted), finished, int(emitted.num_running) == 0
        )
    host = done.pace.host
    return IterationEvent(
        start_s=_seconds(facts, "start"),
        duration_s=_seconds(facts, "duration") if facts["computed"] else 0.0,
        host_s=int(host.seconds) + int(host.nanoseconds) / NANOSECONDS,
        rung=str(done.rungs.rungs[rung]), rung_tokens=done.rungs.rungs[rung].tokens,
        extra_tokens=facts["extra_tokens"], grants=grants, admitted=ids(plan.admitted),
        cached=cached, preempted=ids(plan.preempted), swapped=ids(plan.swapped_out),
        emitted=ids(emitted.emitted), delivered=delivered, finished=finished,
        running=facts["running"], waiting=facts["waiting"], backlog=facts["backlog"],
        used_blocks=int(done.system.num_blocks) - facts["free_blocks"],
        free_blocks=facts["free_blocks"], live_tokens=facts["live_tokens"],
        block_size=int(done.system.block_size),
        limited_by=LimitedBy(facts["limited_by"]).word, compiled=bool(facts["compiled"]),
        computed=bool(facts["computed"]),
    )


def _seconds(facts, name: str) -> float:
    return facts[f"{name}_s"] + facts[f"{name}_ns"] / NANOSECONDS
