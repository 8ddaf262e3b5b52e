"""Accelerator: the roofline of a model on a device, by name, at shares of the vendor's rates."""

from cbjax import hardware as tables
from cbjax.simulate.costs.roofline import Roofline, roofline


def accelerator(
    hardware: str, model: str, devices: int = 1, dtype: str = "bfloat16",
    kv_dtype: str | None = None, bandwidth_efficiency: float = 0.8, flop_efficiency: float = 0.7,
    overhead_s: float = 0.001,
) -> Roofline:
    """An iteration takes what the tables of `cbjax.hardware` say, at reachable rates.

    The efficiencies and the overhead are assumptions, not measurements; step times composed of
    measured kernels of Llama 3.1 8B reach 0.75 to 0.95 of the bandwidth in decoding. Transfers
    between devices are not counted.

    Args:
        hardware: e.g. "h100".
        model: e.g. "llama3.1-8b".
        devices: that share the model by tensor parallelism.
        dtype: of weights and operands.
        kv_dtype: of the KV cache; None: as `dtype`.
        bandwidth_efficiency, flop_efficiency: shares of the vendor's rates, 0 < x <= 1.
        overhead_s: seconds of every iteration for launches and the host.

    Raises:
        ValueError: an unknown name or type, or a number out of range.
    """
    chip = tables.load(hardware)
    costs = tables.roofline.step_costs(
        tables.models.load(model), dtype=dtype, kv_dtype=kv_dtype, devices=devices
    )
    return roofline(
        costs.weights, costs.kv_token, costs.token, bandwidth=chip.bandwidth,
        flop_rate=chip.rate(dtype), flops_per_pair=costs.pair, flops_per_sequence=costs.logit,
        overhead_s=overhead_s, bandwidth_efficiency=bandwidth_efficiency,
        flop_efficiency=flop_efficiency,
    )
