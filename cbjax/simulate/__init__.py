"""The simulator: the project's own scheduler under a virtual clock, in one compiled loop."""

# ruff: noqa: E402 - the compiler is asked before anything can be compiled
from cbjax.simulate import compiler

compiler.ask_for_one_kernel()

from cbjax.simulate import costs
from cbjax.simulate.simulate import Simulated, SimulationStalled, simulate
from cbjax.simulate.stream import Stream, stream_of, stream_of_columns
from cbjax.simulate.sweep import Setting, simulate_many

__all__ = [
    "Setting",
    "Simulated",
    "SimulationStalled",
    "Stream",
    "costs",
    "simulate",
    "simulate_many",
    "stream_of",
    "stream_of_columns",
]
