"""What a run tells the recorder: plain values, no arrays.

The engine, the simulator and a client of an external endpoint describe what happened in this one
form. It holds host values only, so that `metrics` needs neither the scheduler nor JAX, and every
figure can be drawn from any of the three sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["prefill", "decode"]


@dataclass(frozen=True)
class IterationEvent:
    """One turn of the loop, told when its tokens are known on the host.

    All times are seconds since the start of the clock. The iteration's tokens exist at
    `start_s + duration_s`; `host_s` is host work for this iteration outside of `duration_s`.
    `waiting` and `backlog` are what is left after the scheduling decision; blocks and `live_tokens`
    are counted at the same moment.
    """

    start_s: float
    duration_s: float
    host_s: float = 0.0
    rung: str = ""
    rung_tokens: int = 0
    extra_tokens: int = 0
    """Padding a policy asked for (padded static batching); at most `rung_tokens` minus grants."""
    grants: Sequence[tuple[int, int, int, str]] = ()
    """(request_id, tokens, first_time_tokens, kind); the difference was computed before."""
    admitted: Sequence[int] = ()
    preempted: Sequence[int] = ()
    swapped: Sequence[int] = ()
    """Those of `preempted` whose blocks were moved to the swap pool."""
    cached: Sequence[tuple[int, int]] = ()
    """(request_id, prompt tokens found in the prefix cache) for requests admitted just now."""
    emitted: Sequence[int] = ()
    """One token each; an id may repeat when one iteration emits several of its tokens."""
    delivered: Sequence[tuple[int, int]] | None = None
    """(request_id, tokens handed to the user now); None: every token when emitted."""
    finished: Sequence[tuple[int, str]] = ()
    """(request_id, finish_reason)."""
    running: int = 0
    waiting: int = 0
    backlog: int = 0
    used_blocks: int = 0
    free_blocks: int = 0
    live_tokens: int = 0
    """Positions of used KV blocks that hold KV of a request; a shared position counts once."""
    block_size: int = 0
    limited_by: str = ""
    compiled: bool = False
    told_s: float | None = None
    """When the host had the tokens: later than they were computed inside of a dispatch of several
    iterations; None: at the end of this one."""
    repeats: int = 1
    """Iterations this event stands for (a leap); token counts are totals over them."""
    computed: bool = True
    """False: nothing was computed, requests were only moved on or off their seats or told of their
    end. It is no iteration."""

    @property
    def end_s(self) -> float:
        """The moment this iteration's tokens are known."""
        return self.start_s + self.duration_s
