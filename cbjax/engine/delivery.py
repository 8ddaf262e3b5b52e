"""When tokens reach the client: at once, or when the batch ends (static batching's other half)."""

from dataclasses import dataclass, field

import numpy as np

from cbjax.core.reasons import FinishReason
from cbjax.engine.loop import Step


def finished_in(step: Step) -> list[tuple[int, str]]:
    """Requests that ended in the step, with the reason's word."""
    if step.emitted is None:
        return []
    return [
        (int(step.emitted.requests[row]), FinishReason(int(step.emitted.finished[row])).word)
        for row in np.flatnonzero(step.emitted.finished)
    ]


@dataclass
class HeldBack:
    """Tokens and endings that wait for the end of their batch."""

    tokens: dict[int, int] = field(default_factory=dict)  # by request
    finished: list[tuple[int, str]] = field(default_factory=list)

    def take(self, step: Step) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
        """Add a step's; returns what is handed over now: tokens and endings, or nothing."""
        # A batch whose last request was aborted is only seen to be over when the next one forms.
        before = self._release() if step.plan.admitted.any() else ([], [])
        if step.emitted is not None:
            for request_id in step.ids(step.emitted.emitted):
                self.tokens[request_id] = self.tokens.get(request_id, 0) + 1
        self.finished += finished_in(step)
        running = step.plan if step.emitted is None else step.emitted
        after = self._release() if int(running.num_running) == 0 else ([], [])
        return before[0] + after[0], before[1] + after[1]

    def _release(self) -> tuple[list[tuple[int, int]], list[tuple[int, str]]]:
        released = list(self.tokens.items()), self.finished
        self.tokens, self.finished = {}, []
        return released
