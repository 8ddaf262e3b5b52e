"""The least time an iteration can take: what must be moved or computed, over the vendor's rates.

One iteration reads every weight once and each running sequence's KV once, writes the KV of the
new tokens, and computes. The floor is the slower of the two if they overlap perfectly. Activations,
norms, sampling, transfers between devices, launches and the host are not in it: real iterations
take longer, and how much longer is what a measurement tells (Williams, Waterman, Patterson:
Roofline, CACM 2009).

Everything is plain arithmetic on numbers or arrays, of NumPy or JAX alike.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cbjax.hardware.accelerators import Accelerator
from cbjax.hardware.models import ModelShape, item_bytes
from cbjax.hardware.tables import require

Number = Any
"""A number or an array."""
SCALE_BYTES = 4


@dataclass(frozen=True)
class StepCosts:
    """What a model costs on one device of several, per unit of work; bytes and operations.

    Attributes:
        memory: bytes of weights held.
        weights: bytes of weights read in an iteration; rows of an untied embedding are not.
        kv_token: bytes of the KV of one token position, all layers, scales included.
        token: operations of the matrices for one token, without the head.
        logit: operations of the head for one row of logits.
        pair: operations of attention for one query token and one position it attends to.
        dtype: type of weights and operands.
    """

    memory: float
    weights: float
    kv_token: float
    token: float
    logit: float
    pair: float
    dtype: str


@dataclass(frozen=True)
class Iteration:
    """The work of an iteration as sums over its sequences.

    Attributes:
        tokens: new token positions, T.
        read: token positions of KV read: cached ones, rounded up to whole blocks.
        pairs: pairs of a new token and a position it attends to, itself included.
        logits: sequences whose next token is sampled.
    """

    tokens: Number
    read: Number
    pairs: Number
    logits: Number


@dataclass(frozen=True)
class Floor:
    """The least an iteration takes on one device.

    Attributes:
        bytes: moved between memory and chip.
        operations: computed.
        memory_s: seconds of the former.
        compute_s: seconds of the latter.
    """

    bytes: Number
    operations: Number
    memory_s: Number
    compute_s: Number

    @property
    def seconds(self) -> Number:
        """The greater of both. Inside `jax.jit` take `jnp.maximum` of the two instead."""
        return np.maximum(self.memory_s, self.compute_s)

    @property
    def intensity(self) -> Number:
        """Operations per byte."""
        return self.operations / self.bytes


def step_costs(
    model: ModelShape, *, dtype: str = "bfloat16", kv_dtype: str | None = None, devices: int = 1
) -> StepCosts:
    """Costs on each of `devices` that share a model by tensor parallelism.

    Args:
        model: its sizes.
        dtype: of weights and operands.
        kv_dtype: of the KV cache; None: as `dtype`. Numbers of one byte have scales, a float32 per
            token and KV head of keys and of values each, as `pallas_kernels` keeps them.
        devices: must divide H. More devices than KV heads hold copies of them.

    Raises:
        ValueError: an unknown type, or heads that do not divide.
    """
    size = item_bytes("dtype", dtype)
    kv_size = item_bytes("kv_dtype", kv_dtype or dtype)
    head_bytes = model.head_dim * kv_size + (SCALE_BYTES if kv_size == 1 else 0)
    heads, kv_heads = model.num_heads, model.num_kv_heads
    require(devices >= 1 and heads % devices == 0, "devices", devices,
            f"give a divisor of the {heads} query heads of {model.name}")
    require(kv_heads % devices == 0 or devices % kv_heads == 0, "devices", devices,
            f"give a divisor or a multiple of the {kv_heads} KV heads of {model.name}")
    matrices = model.num_layers * model.layer_params
    read = matrices + model.vector_params + model.head_params
    held_heads = max(kv_heads // devices, 1)
    return StepCosts(
        memory=size * model.params / devices,
        weights=size * read / devices,
        kv_token=float(2 * model.num_layers * held_heads * head_bytes),
        token=2.0 * matrices / devices,
        logit=2.0 * model.head_params / devices,
        pair=4.0 * model.num_layers * heads * model.head_dim / devices,
        dtype=dtype,
    )


def iteration(
    *, batch: Number = 0, context: Number = 0, chunk: Number = 0, chunk_context: Number = 0,
    block_size: Number = 1,
) -> Iteration:
    """Decodes of equal context beside one chunk of a prefill.

    Args:
        batch: sequences that decode.
        context: token positions that each of them has in the cache.
        chunk: tokens of the chunk; 0: none. Its last token is sampled.
        chunk_context: positions of its prompt that are in the cache already.
        block_size: KV blocks are read whole.
    """
    def in_blocks(length: Number) -> Number:
        return -(-length // block_size) * block_size

    with_chunk = chunk > 0
    return Iteration(
        tokens=batch + chunk,
        read=batch * in_blocks(context) + with_chunk * in_blocks(chunk_context),
        pairs=batch * (context + 1) + chunk * chunk_context + chunk * (chunk + 1) / 2,
        logits=batch + with_chunk,
    )


def floor(accelerator: Accelerator, costs: StepCosts, work: Iteration) -> Floor:
    """The floor of one iteration on each device.

    Raises:
        ValueError: the accelerator has no rate for the type of the operands.
    """
    moved = costs.weights + costs.kv_token * (work.read + work.tokens)
    operations = costs.token * work.tokens + costs.logit * work.logits + costs.pair * work.pairs
    return Floor(
        moved, operations, moved / accelerator.bandwidth,
        operations / accelerator.rate(costs.dtype),
    )


def kv_blocks(
    accelerator: Accelerator, costs: StepCosts, block_size: int, *, memory_fraction: float = 0.9,
    activations: float = 0.0,
) -> int:
    """KV blocks that fit beside the weights, `num_blocks`.

    Args:
        accelerator: each device.
        costs: of the model on it.
        block_size: token positions of a block.
        memory_fraction: share of the memory for weights, activations and KV.
        activations: bytes that an iteration needs beside weights and KV.

    Raises:
        ValueError: not even one block fits.
    """
    require(0 < memory_fraction <= 1, "memory_fraction", memory_fraction,
            "give a share of the memory, 0 < x <= 1")
    require(block_size >= 1, "block_size", block_size, "use at least 1")
    left = accelerator.memory * memory_fraction - costs.memory - activations
    blocks = int(left // (block_size * costs.kv_token))
    require(blocks >= 1, "hardware", accelerator.name,
            f"{memory_fraction:g} of its {accelerator.memory / 1e9:.1f} GB hold no KV block beside "
            f"{(costs.memory + activations) / 1e9:.1f} GB of weights and activations; use more "
            "devices, a smaller type or model")
    return blocks
