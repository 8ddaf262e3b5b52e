"""Step times as coefficients, where somebody measured a model on a device."""

from dataclasses import dataclass, fields

from cbjax.hardware.tables import entry, require


@dataclass(frozen=True)
class StepTimes:
    """Seconds of an iteration per unit of work; the terms add up.

    Attributes:
        base_s: of any iteration: reading the weights.
        per_prefill_token_s: per prompt token.
        per_sequence_s: per sequence.
        per_context_s: per KV position read.
        per_pair_s: per pair of a prompt token and a position it attends to.
    """

    base_s: float
    per_prefill_token_s: float
    per_sequence_s: float
    per_context_s: float
    per_pair_s: float


def step_times(hardware: str, model: str) -> StepTimes:
    """Measured coefficients of a model on one device, in bfloat16.

    Raises:
        ValueError: there are none for this pair; the text says for which there are.
    """
    found = entry("step_times", "hardware", hardware)
    require(model in found, "model", model,
            f"measured on {hardware}: {', '.join(found)}; cost accelerator needs no measurement")
    return StepTimes(**{field.name: float(found[model][field.name]) for field in fields(StepTimes)})
