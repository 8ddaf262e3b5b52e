"""Accelerators and models as tables, and the least time an iteration can take on them.

    chip, model = hardware.load("h100"), hardware.models.load("llama3.1-8b")
    costs = hardware.roofline.step_costs(model)
    work = hardware.roofline.iteration(batch=32, context=4096, block_size=16)
    hardware.roofline.floor(chip, costs, work).seconds
    hardware.roofline.kv_blocks(chip, costs, block_size=16)
"""

from cbjax.hardware import models, roofline
from cbjax.hardware.accelerators import Accelerator, load, names
from cbjax.hardware.measured import StepTimes, step_times
from cbjax.hardware.models import ModelShape
from cbjax.hardware.roofline import Floor, Iteration, StepCosts

__all__ = [
    "Accelerator",
    "Floor",
    "Iteration",
    "ModelShape",
    "StepCosts",
    "StepTimes",
    "load",
    "models",
    "names",
    "roofline",
    "step_times",
]
