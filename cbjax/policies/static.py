"""Static batching: a batch is formed when the engine is idle and fixed until its last request ends.

The baseline that continuous batching is measured against. Two costs are kept apart because real
systems differ in them: padding (prompts padded to the longest, finished rows computed on) and
delivery (a token at once, or with the whole batch).
"""

import jax.numpy as jnp

from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.core.reasons import LimitedBy
from cbjax.core.steady import UNBOUNDED, steady
from cbjax.core.view import View
from cbjax.policies._batch import Batch, carry_out, form, no_batch
from cbjax.policies._reservation import reservation_number


def static(
    max_batch_size: int = 8, padding: str = "padded", delivery: str = "stream",
    reservation: str = "oracle",
) -> Policy:
    """Static batching of up to `max_batch_size` requests.

    The oldest requests form a batch when nothing runs. Prompts first, each whole (a batch whose
    prompts exceed one iteration takes several), then one token of every request per iteration.
    KV is owned for the whole output from the start.

    Args:
        max_batch_size: most requests in a batch.
        padding: "padded": every prompt costs as much as the longest, a finished request keeps
            computing, and each owns KV for the longest prompt and the longest output of the batch;
            "ragged": only real tokens are computed, a finished request just keeps its seat.
        delivery: "stream": a token reaches the client when it is computed; "at_end": when the
            batch ends.
        reservation: KV slots of an output; "oracle", "pow2" or "max" as in `orca`.

    Raises:
        ValueError: a knob is out of range.

    Source: request-level batching as in FasterTransformer and as the baseline of Orca (OSDI 2022).
    """
    require_positive(max_batch_size=max_batch_size)
    for name, value, allowed in (
        ("padding", padding, ("padded", "ragged")), ("delivery", delivery, ("stream", "at_end")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: choose one of {list(allowed)}")
    return Policy(
        knobs=dict(
            max_batch_size=max_batch_size, padded=padding == "padded",
            reservation=reservation_number(reservation),
        ),
        name="static", init=_init, decide=_decide, steady=_steady, seats="max_batch_size",
        traits=Traits(
            whole_prompts=True, reserves_output=True,
            deliver_at="token" if delivery == "stream" else "batch_end",
        ),
    )


def _init(knobs: dict, limits: Limits, system: System) -> Batch:
    return no_batch()


def _decide(knobs: dict, batch: Batch, view: View):
    how = dict(padded=knobs["padded"], reservation=knobs["reservation"])
    queue = form(view, most=knobs["max_batch_size"], **how)
    return carry_out(view, queue, batch, size=queue.admitted, **how)


def _steady(knobs: dict, batch: Batch, view: View):
    """A token for each until the last one ends, whoever waits."""
    return steady(
        UNBOUNDED, through=True,
        limited_by=jnp.where(
            view.num_waiting > 0, int(LimitedBy.BATCH_RUNNING), int(LimitedBy.QUEUE_EMPTY)
        ),
        width=jnp.where(knobs["padded"], batch.size, 0),
    )
