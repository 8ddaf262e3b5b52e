"""A policy is a value: pure functions and their knobs. It decides; the mechanism carries out.

A policy is built by a plain function that bears the names and defaults of the system it stands for,
for example `cbjax.policies.vllm(max_num_seqs=64)`. Its knobs are pytree leaves, so that one
compiled program serves every value and `vmap` over a knob works.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from cbjax.core.limits import Limits, System

MOMENTS = ("schedule", "compute", "prefill_done", "finish")  # when a prefix can become visible


@dataclass(frozen=True)
class Traits:
    """Facts about a policy that the mechanism obeys; static and hashable.

    Attributes:
        whole_prompts: a prompt is computed in one iteration, so one that exceeds the most tokens of
            an iteration is refused at the door.
        reserves_output: a request owns KV for its whole output from the start; otherwise the last
            token, which is never attended to, needs no KV.
        deliver_at: when a token reaches the client: "token" (each iteration) or "batch_end".
        shares: prefixes are shared: the policy handles the pool itself (see `core/sharing.py`).
        register_at: when a computed prefix becomes visible to others: "schedule", "compute",
            "prefill_done" or "finish".
        registers_ended: what is registered of a request when it ends, as far as the policy has not
            done so: all that it "computed"; its "prompt", of which what can be found already is
            given up for what is found; or "nothing".
        free_order: which free block is handed out first under prefix sharing: one that cannot be
            found again ("unregistered_first") or the one freed longest ago ("oldest_first"). Of one
            sequence the last block always comes first.
        lag: iterations that the schedule runs ahead of the results, 0 or 1. With 1, a request that
            ended is seen as running in one more iteration and may be granted a token for nothing.
        drops_in_flight: with lag, a preempted request loses the token of the iteration under way
            and computes it again, even if that token ended it. It is delivered once all the same.
        restarts_outputs: at a preemption outputs become prompt, so `max_tokens` starts again: a
            fault of some originals, kept for study.
    """

    whole_prompts: bool = False
    reserves_output: bool = False
    deliver_at: str = "token"
    shares: bool = False
    register_at: str = "compute"
    registers_ended: str = "computed"
    free_order: str = "unregistered_first"
    lag: int = 0
    drops_in_flight: bool = False
    restarts_outputs: bool = False

    def __post_init__(self) -> None:
        if self.drops_in_flight and not self.lag:
            raise ValueError("traits.drops_in_flight: nothing is under way with lag = 0")
        allowed = {
            "deliver_at": ("token", "batch_end"),
            "register_at": MOMENTS,
            "registers_ended": ("computed", "prompt", "nothing"),
            "free_order": ("unregistered_first", "oldest_first"),
            "lag": (0, 1),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"traits.{name} = {getattr(self, name)!r}: choose one of {list(values)}"
                )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Policy:
    """Knobs and the functions that read them.

    Attributes:
        knobs: the system's own names and values; Python numbers or arrays, the only leaves.
        name: static; the name in configs, tables and figures.
        init: static; `(knobs, Limits, System) -> PolicyState`. Runs on the host before anything is
            compiled; checks the policy's start-up rules. PolicyState is any pytree, often `()`.
        decide: static; `(knobs, PolicyState, View) -> (Decision, PolicyState)`, pure and jit-able.
        settle: static; `(PolicyState, View) -> Blocks`, or None: what becomes of the pool when the
            results of the last iteration are in, before aborts and arrivals. Only from a policy
            that shares prefixes.
        traits: static; facts the mechanism obeys.
        steady: static; `(knobs, PolicyState, View) -> Steady`, or None: how long the policy goes on
            as it does now if all that runs decodes (see `core/steady.py`). None = it never says.
        advance: static; `(knobs, PolicyState, View, turns, running) -> PolicyState`: its state
            after so many such iterations, the last one with so many running; None = unchanged.
        seats: static; the knob that says how many requests may run at a time.
        budget: static; the knob that says how many tokens an iteration may have, or None.
    """

    knobs: dict[str, Any]
    name: str = field(metadata={"static": True})
    init: Callable[[dict[str, Any], Limits, System], Any] = field(metadata={"static": True})
    decide: Callable[..., Any] = field(metadata={"static": True})
    seats: str = field(metadata={"static": True})
    budget: str | None = field(default=None, metadata={"static": True})
    settle: Callable[..., Any] | None = field(default=None, metadata={"static": True})
    steady: Callable[..., Any] | None = field(default=None, metadata={"static": True})
    advance: Callable[..., Any] | None = field(default=None, metadata={"static": True})
    traits: Traits = field(default=Traits(), metadata={"static": True})


def require_positive(**knobs: int) -> None:
    """Start-up rule shared by most systems: these knobs are whole numbers of at least 1.

    Raises:
        ValueError: naming the knob, its value and the remedy.
    """
    for name, value in knobs.items():
        if int(value) != value or value < 1:
            raise ValueError(f"{name} = {value!r}: give a whole number of at least 1")


def require_full_batch_fits(max_num_batched_tokens: int, max_num_seqs: int) -> None:
    """Start-up rule of vLLM: both are positive, and a decode of every seat fits the budget.

    Raises:
        ValueError: naming the knob, its value and the remedy.
    """
    require_positive(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs)
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens = {max_num_batched_tokens} is below max_num_seqs = "
            f"{max_num_seqs}: a full batch of decodes would not fit; raise the budget or lower the "
            "seats"
        )


def no_state(knobs: dict[str, Any], limits: Limits, system: System) -> tuple[()]:
    """The state of a policy that carries none."""
    return ()
