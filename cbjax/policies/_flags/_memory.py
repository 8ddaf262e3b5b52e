"""From a system's memory flag to its number of KV blocks: one pure function per rule.

The flags look alike and mean different things: a share of all memory or of what is left, with the
weights inside or outside, before or after the measurement of activations. Every rule rounds as its
system does, and what a command line does not say is in the record.
"""

from dataclasses import dataclass
from math import ceil

_MIB, _GIB = 2**20, 2**30
_CELLS = 256  # llama.cpp makes contexts a multiple of it


@dataclass(frozen=True)
class Memory:
    """What a server finds on one device when it starts, in bytes.

    Attributes:
        total: all memory of the device.
        free: what is free of it before the server loads anything.
        weights: the model's weights on this device.
        activations: the most that one iteration needs beside weights and KV, buffers included.
        block: one KV block of all layers on this device.
        measured_blocks: KV blocks that exist while the activations are measured (TGI).
        context: the model's longest sequence, for systems that size the pool by it (llama.cpp).
    """

    total: int
    free: int
    weights: int
    activations: int
    block: int
    measured_blocks: int = 0
    context: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.free <= self.total:
            raise ValueError(f"free = {self.free}: give bytes from 0 to total = {self.total}")
        if self.block < 1:
            raise ValueError(f"block = {self.block}: give the bytes of a KV block, at least 1")

    @property
    def others(self) -> int:
        """What neither KV nor free memory may use: weights and activations."""
        return self.weights + self.activations


def vllm_blocks(memory: Memory, utilization: float) -> int:
    """`--gpu-memory-utilization`: a share of all memory, weights and activations inside.

    One block of the pool is the null block, which is never handed out, so it is not counted.

    Raises:
        ValueError: less is free than wanted; the original does not start either.

    Source: vLLM 0.32, `request_memory` and `determine_available_memory`.
    """
    wanted = ceil(memory.total * utilization)
    if memory.free < wanted:
        raise ValueError(
            f"gpu_memory_utilization = {utilization}: {wanted} bytes are wanted and "
            f"{memory.free} free, so the server would not start; lower it"
        )
    return vllm_blocks_in(memory, wanted - memory.others)


def vllm_blocks_in(memory: Memory, kv_bytes: int) -> int:
    """`--kv-cache-memory-bytes`: the pool itself, its null block not counted."""
    return max(kv_bytes // memory.block - 1, 0)


def peak_blocks(memory: Memory, utilization: float) -> int:
    """`gpu_memory_utilization` of vLLM V0 and Sarathi: without a null block, in floats."""
    return max(int((memory.total * utilization - memory.others) // memory.block), 0)


def sglang_blocks(
    memory: Memory, fraction: float, page_size: int, max_total_tokens: int | None = None
) -> int:
    """`--mem-fraction-static`: weights and KV together, a share of what was free at the start.

    Source: SGLang 0.5.5.post3, `profile_max_num_token`, in GiB and tokens.
    """
    rest = (memory.free - memory.weights) / _GIB - memory.free / _GIB * (1 - fraction)
    tokens = int(rest * _GIB // (memory.block // page_size))
    if max_total_tokens is not None:
        tokens = min(tokens, max_total_tokens)
    return max(tokens // page_size, 0)


def sglang_fraction(total: int, chunked_prefill_size: int, max_prefill_tokens: int) -> float:
    """What `--mem-fraction-static` is if it is not given: all but an estimated reserve.

    Source: SGLang 0.5.5.post3, `_handle_gpu_memory_settings`, one NVIDIA device.
    """
    mib = total / _MIB
    graphs = next(
        (batch for below, batch in ((20, 8), (35, 24), (60, 32), (160, 256)) if mib < below * 1024),
        512,
    )
    prefill = chunked_prefill_size if chunked_prefill_size > 0 else max_prefill_tokens
    reserve = 512 + max(prefill, 2048) * 1.5 + graphs * 2 + 1 / 8 * 1024
    if mib > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    return round((mib - reserve) / mib, 3)


def tensorrt_llm_blocks(memory: Memory, fraction: float, tokens_per_block: int) -> int:
    """`--free_gpu_memory_fraction`: a share of what weights and activations leave; rounded up.

    Source: TensorRT-LLM, `resource_manager.py`, `calculate_max_num_blocks`.
    """
    per_token = memory.block // tokens_per_block
    tokens = fraction * (memory.free - memory.others) / per_token
    return max(ceil(tokens / tokens_per_block), 0)


def tgi_blocks(memory: Memory, fraction: float, wiggle_room: float = 0.9) -> int:
    """`--cuda-memory-fraction`: what is left after the warm-up, the rest of the device kept away.

    The KV of the warm-up's own batch is still there when the free memory is read.

    Source: text-generation-inference 3.3.7, `get_cuda_free_memory` and `warmup`.
    """
    free = memory.free - memory.others - memory.measured_blocks * memory.block
    left = max(0, free - (1 - fraction) * memory.total)
    return int((left * wiggle_room) // memory.block) + memory.measured_blocks


def transformers_blocks(memory: Memory, percent: float) -> int:
    """`--cb-max-memory-percent`: a share of what the weights leave, activations inside.

    Source: transformers 5.24, `PagedAttentionMemoryHandler`, for one kind of attention layer; what
    grows with the cache (read indices, masks) is part of `block` and `activations`.
    """
    available = int((memory.free - memory.weights) * percent)
    return max((available - memory.activations) // memory.block, 0)


def llama_cells(ctx_size: int, slots: int, unified: bool) -> tuple[int, int]:
    """`-c`: tokens of the pool, in whole 256s; without `-kvu` every slot owns an equal part.

    Returns:
        Cells of the pool and of one slot.

    Source: llama.cpp of 2026-10, `llama_context`.
    """
    cells = _padded(ctx_size)
    if unified:
        return cells, cells
    own = _padded(cells // slots)
    return own * slots, own


def _padded(cells: int) -> int:
    return -(-cells // _CELLS) * _CELLS
