"""The engine: a policy and a model under the wall clock."""

from cbjax.engine.engine import Engine
from cbjax.engine.loop import Arrival, SchedulerStalled
from cbjax.engine.request import Completion, Output
from cbjax.engine.sampling import Sampling
from cbjax.engine.unit_clock import serve_with_unit_clock

__all__ = [
    "Arrival",
    "Completion",
    "Engine",
    "Output",
    "Sampling",
    "SchedulerStalled",
    "serve_with_unit_clock",
]
