"""The host-driven loop: arrivals and aborts in, one iteration per step, plain records out.

The three verbs are compiled; the loop only carries values between them, keeps the backlog and the
clock, and never looks inside a policy. What executes a plan (a model, or nothing under a unit
clock) is passed in.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np
from jax.typing import ArrayLike

from cbjax.core.commit import commit_jit
from cbjax.core.inbox import Inbox, empty_inbox
from cbjax.core.invariants import Snapshot, check
from cbjax.core.ladder import Ladder, Rung
from cbjax.core.limits import Limits, System
from cbjax.core.plan import Emitted, Plan
from cbjax.core.policy import Policy
from cbjax.core.reasons import LimitedBy, Refusal
from cbjax.core.rows import NO_GROUP, NO_REQUEST, NO_ROW
from cbjax.core.schedule import schedule_jit
from cbjax.core.state import State, initial_state
from cbjax.core.time import Time, from_seconds
from cbjax.engine.clock import Clock
from cbjax.engine.megastep import Dispatch

# Requests that entered, were refused, were aborted.
Moved = tuple[tuple[int, ...], tuple[tuple[int, Refusal], ...], tuple[int, ...]]
_PATIENCE = 3  # steps in a row that may change nothing before the loop is called stuck


class SchedulerStalled(RuntimeError):
    """The policy schedules nothing although requests wait and nothing else will happen."""


@dataclass(frozen=True)
class Arrival:
    """A request as the scheduler needs it.

    Attributes:
        request_id: unique among the living; 0 or more.
        prompt_tokens: length of the prompt.
        max_tokens: most output tokens; 0 = as many as fit.
        token_ids: the prompt; may be empty where nobody reads it.
        arrival_s: when it was due, in seconds of the loop's clock.
        priority: direction is the policy's.
        predicted: predicted output tokens, or None.
        deadline_s: or None.
        group: requests sampled from one prompt share a number of at least 0.
    """

    request_id: int
    prompt_tokens: int
    max_tokens: int = 0
    token_ids: Sequence[int] = ()
    arrival_s: float = 0.0
    priority: int = 0
    predicted: int | None = None
    deadline_s: float | None = None
    group: int = NO_GROUP


class Executor(Protocol):
    """Computes what a plan says."""

    def place(self, request_id: int, row: int) -> None:
        """A request took a row."""

    def move(self, state: State, host_plan: Plan) -> None:
        """Move KV before anything is written: to the host, back, from sample to sample."""

    def execute(self, state: State, plan: Plan, host_plan: Plan, rung: Rung):
        """Tokens `[P]` and whether each ends its request `[P]`, on the host."""


class Dispatcher(Protocol):
    """Computes several iterations in one dispatch."""

    def at_once(self, host_plan: Plan, rung: Rung) -> int:
        """Most iterations that one dispatch beginning with this plan may take."""

    def dispatch(
        self, policy: Policy, state: State, plan: Plan, host_plan: Plan, *, limits: Limits,
        ladder: Ladder, rung: Rung, inbox: Inbox, limit: int, ends_leave: bool,
    ) -> tuple[State, Dispatch]:
        """Compute the plan and what is decided after it, up to `limit` iterations."""


@dataclass(frozen=True)
class Step:
    """One turn of the loop, in host values; times in seconds of the loop's clock."""

    plan: Plan
    emitted: Emitted | None  # None where nothing was scheduled
    rung: Rung | None
    begun_s: float  # the schedule was asked
    start_s: float  # the computation started
    end_s: float  # its tokens were known
    done_s: float  # they were committed
    told_s: float  # the host had them: after `end_s` inside of a megastep
    entered: tuple[int, ...] = ()  # requests that entered the window
    refused: tuple[tuple[int, Refusal], ...] = ()
    aborted: tuple[int, ...] = ()
    block_size: int = 0
    num_blocks: int = 0

    def ids(self, mask: ArrayLike) -> list[int]:
        """Requests of the rows in `mask`, in row order."""
        return [int(request) for request in self.plan.requests[np.asarray(mask, bool)]]


@dataclass
class Loop:
    """Steps a policy over a system; holds the state, the backlog and who sits in which row."""

    policy: Policy
    limits: Limits
    system: System
    ladder: Ladder
    executor: Executor
    clock: Clock
    debug: bool = False
    dispatcher: Dispatcher | None = None  # None = every iteration by itself
    expects_arrivals: bool = False  # somebody may submit at any time, or when a request ends
    state: State = field(init=False)
    # By request, in order: neither a look-up nor a removal walks through who waits.
    _backlog: OrderedDict[int, Arrival] = field(init=False, default_factory=OrderedDict)
    _seen: set[int] = field(init=False, default_factory=set)  # requests in the rows
    _aborts: list[int] = field(init=False, default_factory=list)
    _ending: int = field(init=False, default=0)  # ended requests that the policy still sees
    _idle_steps: int = field(init=False, default=0)
    _checked: Snapshot | None = field(init=False, default=None)  # debug mode's last state
    _done: deque[Step] = field(init=False, default_factory=deque)  # computed, not yet returned
    _decided: Plan | None = field(init=False, default=None)  # a megastep's last, to be computed

    def __post_init__(self) -> None:
        # On the device once: it has room for the longest prompts, and most often brings nobody.
        self._nobody = jax.device_put(empty_inbox(self.limits))
        self.state = initial_state(self.policy, self.limits, self.system)
        self._block_size = int(self.system.block_size)
        self._num_blocks = int(self.system.num_blocks)

    @property
    def alive(self) -> int:
        """Requests that were submitted and have not left."""
        return len(self._seen) + len(self._backlog) + self._ending

    def submit(self, arrival: Arrival) -> None:
        """Queue a request behind all others.

        Raises:
            ValueError: a living request bears the same id.
        """
        taken = arrival.request_id in self._seen or arrival.request_id in self._backlog
        if taken or arrival.request_id < 0:
            raise ValueError(
                f"request_id = {arrival.request_id}: use a number from 0 that no living request has"
            )
        self._backlog[arrival.request_id] = arrival

    def abort(self, request_id: int) -> bool:
        """End a request in whatever phase; True if it never reached the scheduler.

        Aborting twice, or a request that has ended or never was, changes nothing.
        """
        if self._backlog.pop(request_id, None) is not None:
            return True
        if request_id in self._seen and request_id not in self._aborts:
            self._aborts.append(request_id)
        return False

    def step(self) -> Step:
        """Schedule one iteration, compute it, commit it; in a megastep, several at once.

        Returns:
            The oldest iteration that was not returned yet.

        Raises:
            SchedulerStalled: nothing can change any more although requests wait.
            InvariantError: in debug mode, naming what broke.
        """
        if not self._done:
            self._done.extend(self._advance())
        return self._done.popleft()

    def _advance(self) -> list[Step]:
        begun = self.clock.now()
        plan, self._decided = self._decided, None
        offered: list[Arrival] = []
        if plan is None:
            inbox, offered = self._fill_inbox(begun)
            self.state, plan = schedule_jit(self.policy, self.state, inbox, self.limits)
        host: Plan = jax.device_get(plan)
        if self.debug:
            check(self.state, self.limits, host)
        entered, refused, aborted = self._take_in(host, offered)

        total = int(host.scheduled_tokens) + int(host.extra_tokens)
        self._notice_stall(host, total, bool(entered or refused or aborted))
        start = end = self.clock.now()
        if host.moves_kv():
            self.executor.move(self.state, host)
        emitted, rung = None, None
        if total or self._ending:
            rung = self.ladder.rungs[self.ladder.choose(total, int(host.num_sequences))]
            at_once = self._at_once(host, rung) if total else 1
            if at_once > 1:
                moved = entered, refused, aborted
                return self._dispatch(plan, host, rung, at_once, begun, moved)
            tokens, stopped = self.executor.execute(self.state, plan, host, rung)
            end = self.clock.now()
            self.state, result = commit_jit(self.state, plan, tokens, stopped, from_seconds(end))
            emitted = jax.device_get(result)
            if self.debug:
                self._checked = check(self.state, self.limits, before=self._checked)
            self._let_go(emitted)
        return [
            Step(
                host, emitted, rung, begun, start, end, self.clock.now(), end, entered, refused,
                aborted, self._block_size, self._num_blocks,
            )
        ]

    def _at_once(self, host: Plan, rung: Rung) -> int:
        """Most iterations of the next dispatch; one while a newcomer would find a seat."""
        seat_is_free = int(host.num_running) < self.limits.seats
        if self.dispatcher is None or self.debug or (self.expects_arrivals and seat_is_free):
            return 1
        return self.dispatcher.at_once(host, rung)

    def _dispatch(
        self, plan: Plan, host: Plan, rung: Rung, limit: int, begun: float, moved: Moved
    ) -> list[Step]:
        """Several iterations in one call of the device; its time is divided evenly."""
        start = self.clock.now()
        numbers: dict[str, Any] = dict(
            backlog=np.int32(len(self._backlog)), clock=from_seconds(begun)
        )
        assert self.dispatcher is not None
        self.state, result = self.dispatcher.dispatch(
            self.policy, self.state, plan, host, limits=self.limits, ladder=self.ladder, rung=rung,
            inbox=replace(self._nobody, **numbers), limit=limit,
            ends_leave=self.expects_arrivals or bool(self._backlog),
        )
        end = self.clock.now()
        self._decided = result.pending if bool(result.decided) else None
        rows = jax.device_get(result).rows()
        taken: list[Moved] = []
        for at, (host, emitted) in enumerate(rows):
            taken.append(self._take_in(host, []) if at else moved)
            self._let_go(emitted)
        done = self.clock.now()
        each = (end - start) / len(rows)
        moments = [start + at * each for at in range(len(rows))] + [end]
        # What the host did before and after belongs to the first and the last of them.
        return [
            Step(
                host, emitted, rung, moments[at] if at else begun, moments[at], moments[at + 1],
                done if at == len(rows) - 1 else moments[at + 1], end, *taken[at],
                self._block_size, self._num_blocks,
            )
            for at, (host, emitted) in enumerate(rows)
        ]

    def _let_go(self, emitted: Emitted) -> None:
        """Forget the requests that ended."""
        done = emitted.finished != 0
        self._seen -= {int(request) for request in emitted.requests[done]}
        self._ending = int(np.sum(done)) * self.policy.traits.lag

    def _fill_inbox(self, now: float) -> tuple[Inbox, list[Arrival]]:
        """Offer as many of the backlog as rows are free; the rest stays, in order."""
        room = min(self.limits.inbox, self.limits.rows - len(self._seen), len(self._backlog))
        inbox = empty_inbox(self.limits) if room or self._aborts else self._nobody
        offered = [self._backlog.popitem(last=False)[1] for _ in range(room)]
        for index, arrival in enumerate(offered):
            inbox.request[index] = arrival.request_id
            inbox.prompt[index] = inbox.known[index] = arrival.prompt_tokens
            inbox.max_tokens[index] = arrival.max_tokens
            if arrival.predicted is not None:
                inbox.predicted[index] = arrival.predicted
            inbox.priority[index] = arrival.priority
            inbox.group[index] = arrival.group
            _put_time(inbox.arrival, index, arrival.arrival_s)
            if arrival.deadline_s is not None:
                _put_time(inbox.deadline, index, arrival.deadline_s)
            ids = arrival.token_ids[: self.limits.context]
            inbox.token_ids[index, : len(ids)] = ids
        aborts, self._aborts = self._aborts[: self.limits.inbox], self._aborts[self.limits.inbox :]
        if aborts:
            inbox.abort[: len(aborts)] = aborts
        numbers: dict[str, Any] = {
            "count": np.int32(room),
            "backlog": np.int32(len(self._backlog)),
            "clock": from_seconds(now),
        }
        return replace(inbox, **numbers), offered

    def _take_in(self, plan: Plan, offered: list[Arrival]) -> Moved:
        """Who entered, who was refused, who is gone."""
        aborted = tuple(int(one) for one in plan.aborted_requests if one != NO_REQUEST)
        entered, refused, unplaced = [], [], []
        for arrival, row, refusal in zip(offered, plan.entered, plan.turned_away, strict=False):
            if refusal:
                refused.append((arrival.request_id, Refusal(int(refusal))))
            elif row == NO_ROW:
                unplaced.append(arrival)
            else:
                entered.append(arrival.request_id)
                self.executor.place(arrival.request_id, int(row))
        for arrival in reversed(unplaced):
            self._backlog[arrival.request_id] = arrival
            self._backlog.move_to_end(arrival.request_id, last=False)
        self._seen |= set(entered)
        for row in np.flatnonzero(plan.refused):
            refused.append((int(plan.requests[row]), Refusal(int(plan.refused[row]))))
        self._seen -= {request for request, _ in refused} | set(aborted)
        return tuple(entered), tuple(refused), aborted

    def _notice_stall(self, plan: Plan, total: int, moved: bool) -> None:
        changed = total or moved or plan.admitted.any() or plan.preempted.any()
        waits = int(plan.num_waiting) + int(plan.num_running) > 0
        sleeps = int(plan.wake.seconds) < np.iinfo(np.int32).max
        self._idle_steps = 0 if changed or sleeps or not waits else self._idle_steps + 1
        if self._idle_steps >= _PATIENCE:
            reason = LimitedBy(int(plan.limited_by))
            raise SchedulerStalled(
                f"policy {self.policy.name} scheduled nothing {_PATIENCE} times in a row with "
                f"{int(plan.num_running)} requests running and {int(plan.num_waiting)} waiting "
                f"({reason.sentence}): more KV blocks or seats may help; otherwise the policy has "
                "a fault"
            )


def _put_time(times: Time, index: int, seconds: float) -> None:
    moment = from_seconds(seconds)
    times.seconds[index], times.nanoseconds[index] = moment.seconds, moment.nanoseconds
