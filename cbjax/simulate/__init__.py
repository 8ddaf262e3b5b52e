"""The simulator: the project's own scheduler under a virtual clock, in one compiled loop."""

from cbjax.simulate import compiler

compiler.ask_for_one_kernel()  # before anything is compiled

from cbjax.simulate import costs
from cbjax.simulate.simulate import Simulated, SimulationStalled, simulate
from cbjax.simulate.stream import Stream, stream_of, stream_of_columns

__all__ = [
    "Simulated",
    "SimulationStalled",
    "Stream",
    "costs",
    "simulate",
    "stream_of",
    "stream_of_columns",
]
