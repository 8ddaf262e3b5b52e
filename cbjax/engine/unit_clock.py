"""The loop under a unit clock: every iteration takes one second and computes nothing.

The decisions are the real ones of `schedule` and `commit`; only the model is missing. For worked
examples, tests and teaching: times are whole seconds that can be checked by hand.
"""

from dataclasses import dataclass, field

import numpy as np

from cbjax.core.ladder import Ladder, Rung, ladder
from cbjax.core.limits import system
from cbjax.core.plan import Plan
from cbjax.core.policy import Policy
from cbjax.core.state import State
from cbjax.engine.clock import Clock, UnitClock
from cbjax.engine.delivery import HeldBack
from cbjax.engine.loop import Arrival, Loop
from cbjax.engine.serve import Progress, Turn, serve
from cbjax.engine.sizing import limits_for
from cbjax.metrics import Recorder
from cbjax.workload import Workload, WorkloadRequest


@dataclass
class _NoModel:
    """Executes a plan by letting a second pass."""

    clock: UnitClock

    def place(self, request_id: int, row: int) -> None:
        """Nothing depends on the row."""

    def move(self, state: State, host_plan: Plan) -> None:
        """There is no KV to move."""

    def execute(self, state: State, plan: Plan, host_plan: Plan, rung: Rung):
        """Arbitrary tokens, none of which ends its request."""
        self.clock.tick()
        rows = host_plan.requests.shape[0]
        return np.zeros(rows, np.int32), np.zeros(rows, bool)


@dataclass
class _UnitServer:
    loop: Loop
    clock: Clock
    _held: HeldBack = field(default_factory=HeldBack)

    @property
    def alive(self) -> int:
        return self.loop.alive

    def accept(self, request: WorkloadRequest, due_s: float) -> int:
        length = request.prompt_tokens or 0
        self.loop.submit(
            Arrival(
                request.request_id, length, max_tokens=request.max_tokens or 0, arrival_s=due_s,
                priority=request.priority, predicted=request.predicted_tokens,
            )
        )
        return length

    def expect(self, arrivals: bool) -> None:
        """It makes no difference to a clock that nobody waits for."""

    def turn(self) -> Turn:
        step = self.loop.step()
        if self.loop.policy.traits.deliver_at == "token":
            return Turn(step)
        return Turn(step, *self._held.take(step))


def serve_with_unit_clock(
    policy: Policy, workload: Workload, recorder: Recorder, *, block_size: int = 1,
    num_blocks: int, max_length: int, swap_blocks: int = 0, iteration_tokens: int | None = None,
    window: int = 64, rungs: Ladder | None = None, debug: bool = False,
    progress: Progress | None = None,
) -> None:
    """Serve a workload whose iterations take one second each.

    Args:
        policy: decides.
        workload: requests need `prompt_tokens`; prompts themselves are not read.
        recorder: receives every event.
        block_size, num_blocks, max_length, swap_blocks: the system.
        iteration_tokens: most tokens of an iteration; by default the policy's budget, else
            `max_length`.
        window: waiting requests that the policy sees.
        rungs: the ladder; by default the usual one for these sizes.
        debug: check the invariants after each verb.
        progress: `(label, done, total)`.

    Raises:
        ValueError: numbers that do not fit together.
    """
    limits = limits_for(
        policy, block_size=block_size, num_blocks=num_blocks, max_length=max_length,
        iteration_tokens=iteration_tokens, window=window,
    )
    clock = UnitClock()
    loop = Loop(
        policy, limits,
        system(
            limits, block_size=block_size, num_blocks=num_blocks, max_length=max_length,
            swap_blocks=swap_blocks,
        ),
        rungs or ladder(limits.tokens, limits.seats), _NoModel(clock), clock, debug=debug,
    )
    serve(_UnitServer(loop, clock), workload, recorder, progress)
