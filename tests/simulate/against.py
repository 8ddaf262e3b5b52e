"""Simulations to compare: drawn systems and workloads, and the engine's loop on the same ones."""

from dataclasses import dataclass, field, replace

import numpy as np

from cbjax.core.ladder import ladder
from cbjax.core.limits import Limits
from cbjax.engine.clock import UnitClock
from cbjax.engine.delivery import HeldBack
from cbjax.engine.loop import Arrival, Loop, SchedulerStalled
from cbjax.engine.serve import Turn, serve
from cbjax.metrics import Recorder, Tables
from cbjax.parity.workload import Request
from cbjax.simulate import Simulated, SimulationStalled, costs, simulate, stream_of_columns
from cbjax.simulate.replay import replay
from cbjax.simulate.stream import answer_token
from cbjax.workload import Arrivals, Workload, WorkloadRequest
from tests.policies.beside import Case

SIZE = 32  # requests of a padded stream: one program for all
LANES = 8


def limits_of(case: Case) -> Limits:
    """The case's limits; blocks are only counted unless prefixes are shared."""
    return case.limits if case.policy().traits.shares else replace(
        case.limits, blocks_per_sequence=0
    )


def columns(case: Case, pace: float) -> dict[str, np.ndarray]:
    """Arrivals in seconds, `pace` seconds per iteration of the case; lengths; priorities."""
    requests = case.workload.requests
    return dict(
        arrival_s=np.array([one.arrival * pace for one in requests], float),
        prompt=np.array([one.prompt for one in requests]),
        max_tokens=np.array([one.max_tokens for one in requests]),
        priority=np.array([one.priority for one in requests]),
    )


def ids_of(request: Request) -> list[int]:
    """Token ids of a prompt: its own, or some that no other prompt has."""
    first = 1000 * request.id
    return list(request.token_ids or range(first, first + request.prompt))


def run(case: Case, cost=None, *, pace: float = 1.0, **options) -> Simulated | str:
    """The case simulated, or the error of a policy that is stuck."""
    limits = limits_of(case)
    token_ids = None
    if limits.context:
        token_ids = np.zeros((len(case.workload.requests), limits.context), np.int32)
        for row, one in zip(token_ids, case.workload.requests, strict=True):
            ids = ids_of(one)[: limits.context]
            row[: len(ids)] = ids
    stream = stream_of_columns(
        **columns(case, pace), limits=limits, size=SIZE, token_ids=token_ids
    )
    options = dict(lanes=LANES) | options
    try:
        return simulate(
            stream, case.policy(), cost or costs.linear(base_s=1.0), limits, system=case.system(),
            rungs=ladder(case.limits.tokens, case.limits.seats), **options,
        )
    except SimulationStalled as error:
        return str(error)


def differences(one: Simulated | str, other: Simulated | str) -> list[str]:
    """Names of what differs between two simulations, bit by bit."""
    if isinstance(one, str) or isinstance(other, str):
        return [] if one == other else [f"{one} / {other}"]
    found = [] if one.iteration_count == other.iteration_count else ["iteration_count"]
    for name in ("kept", "gaps", "iterations"):
        if not np.array_equal(getattr(one, name), getattr(other, name)):
            found.append(name)
    return found


@dataclass
class Replayed:
    """Executes a plan by letting the next of the given durations pass."""

    clock: UnitClock
    durations: list[float]
    iteration: int = field(default=0)

    def place(self, request_id: int, row: int) -> None:
        """Nothing depends on the row."""

    def move(self, state, host_plan):
        """There is no KV to move."""

    def execute(self, state, plan, host_plan, rung):
        self.clock.wait_until(self.clock.now() + self.durations[self.iteration])
        self.iteration += 1
        rows = state.rows
        # The simulator's made-up answers: prefixes may be found in them.
        tokens = np.asarray(answer_token(rows.request, state.outputs))
        return tokens, np.zeros(len(tokens), bool)


@dataclass
class Server:
    """The engine's loop as `serve` drives it."""

    loop: Loop
    clock: UnitClock
    prompts: list[list[int]]
    held: HeldBack = field(default_factory=HeldBack)

    @property
    def alive(self) -> int:
        return self.loop.alive

    def expect(self, arrivals: bool) -> None:
        """It makes no difference here."""

    def accept(self, request: WorkloadRequest, due_s: float) -> int:
        self.loop.submit(Arrival(
            request.request_id, request.prompt_tokens or 0, max_tokens=request.max_tokens or 0,
            arrival_s=due_s, priority=request.priority,
            token_ids=self.prompts[request.request_id],
        ))
        return request.prompt_tokens or 0

    def turn(self) -> Turn:
        step = self.loop.step()
        if self.loop.policy.traits.deliver_at == "token":
            return Turn(step)
        return Turn(step, *self.held.take(step))


def engine_tables(
    case: Case, durations: list[float], pace: float = 1.0, arrivals: Arrivals | None = None
) -> Tables | str:
    """The tables of the engine's own loop whose iterations take the given times."""
    limits, clock = limits_of(case), UnitClock()
    rungs = ladder(limits.tokens, limits.seats)
    loop = Loop(case.policy(), limits, case.system(), rungs, Replayed(clock, durations), clock)
    given = columns(case, pace)
    first = arrivals.concurrency if arrivals and arrivals.concurrency else None
    requests = tuple(
        WorkloadRequest(
            request_id=place, class_name="", priority=int(given["priority"][place]),
            scheduled_arrival_s=float(given["arrival_s"][place]) if first is None
            else (0.0 if place < first else None),
            prompt=None, prompt_tokens=int(given["prompt"][place]),
            max_tokens=int(given["max_tokens"][place]), ignore_eos=True, seed=0,
        )
        for place in range(len(given["prompt"]))
    )
    recorder = Recorder()
    try:
        prompts = [ids_of(one) for one in case.workload.requests]
        serve(Server(loop, clock, prompts), Workload(requests, arrivals or Arrivals(), 0), recorder)
    except SchedulerStalled as error:
        return str(error)
    return recorder.tables()


def simulated_tables(case: Case, done: Simulated) -> Tables:
    """The tables of a simulation that kept its plans."""
    recorder = Recorder()
    replay(
        done, recorder, priorities=[one.priority for one in case.workload.requests],
        deliver_at=case.policy().traits.deliver_at,
    )
    return recorder.tables()
