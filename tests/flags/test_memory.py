"""From a memory flag to KV blocks, against numbers worked out by hand."""

import pytest

from cbjax.flags import (
    FlagsError,
    Memory,
    peak_blocks,
    tensorrt_llm_blocks,
    tgi_blocks,
    transformers_blocks,
    vllm_blocks,
    vllm_blocks_in,
)
from cbjax.policies import from_flags

# 1000 bytes of device, 950 free at the start, 400 of weights, 100 of activations, blocks of 7.
DEVICE = Memory(1000, 950, 400, 100, 7)


def test_vllm_rounds_the_wish_up_and_keeps_a_null_block():
    assert vllm_blocks(DEVICE, 0.9) == 400 // 7 - 1
    # 1000 x 0.9001 = 900.1: one byte more is wanted, which makes no block.
    assert vllm_blocks(DEVICE, 0.9001) == 401 // 7 - 1
    assert vllm_blocks(Memory(1000, 950, 400, 100, 401), 0.9001) == 0
    assert vllm_blocks(Memory(1000, 950, 400, 100, 200), 0.9001) == 1
    assert vllm_blocks(DEVICE, 0.5) == 0
    assert vllm_blocks_in(DEVICE, 70) == 9


def test_vllm_does_not_start_where_less_is_free():
    with pytest.raises(ValueError, match="gpu_memory_utilization = 0.96.*lower it"):
        vllm_blocks(DEVICE, 0.96)


def test_v0_and_sarathi_have_no_null_block():
    assert peak_blocks(DEVICE, 0.9) == 400 // 7
    assert peak_blocks(DEVICE, 0.1) == 0


def test_tensorrt_llm_takes_a_share_of_what_is_left_and_rounds_up():
    memory = Memory(1000, 950, 400, 100, 8)  # two bytes a token, four tokens a block
    assert tensorrt_llm_blocks(memory, 0.9, 4) == 51  # 0.9 x 450 / 8 = 50.6
    assert tensorrt_llm_blocks(memory, 0.8, 4) == 45
    assert tensorrt_llm_blocks(Memory(1000, 450, 400, 100, 8), 0.9, 4) == 0


def test_tgi_keeps_the_rest_of_the_device_away_and_adds_the_warm_up():
    assert tgi_blocks(DEVICE, 1.0) == int(450 * 0.9 // 7)
    assert tgi_blocks(DEVICE, 0.8) == int((450 - 200) * 0.9 // 7)
    assert tgi_blocks(DEVICE, 0.1) == 0
    warm = Memory(1000, 950, 400, 100, 7, measured_blocks=10)
    assert tgi_blocks(warm, 1.0) == int((450 - 70) * 0.9 // 7) + 10


def test_transformers_takes_the_share_before_the_activations():
    assert transformers_blocks(DEVICE, 0.9) == (495 - 100) // 7
    assert transformers_blocks(DEVICE, 0.1) == 0


@pytest.mark.parametrize(("line", "blocks"), [
    ("vllm serve m --gpu-memory-utilization 0.9", 56),
    ("vllm serve m --gpu-memory-utilization 0.9 --kv-cache-memory-bytes 70", 9),
    ("vllm serve m", 420 // 7 - 1),
    ("VLLM_USE_V1=0 vllm serve m", 57),
    ("trtllm-serve m", 58),  # 405 bytes are 58 blocks when the last is begun
    ("text-generation-launcher", 57),
    ("transformers serve m --continuous-batching", 56),
    ("python -m sarathi.entrypoints.openai.api_server", 300 // 7),
])
def test_each_system_has_its_own_rule(line, blocks):
    memory = DEVICE
    if line.startswith("trtllm"):
        memory = Memory(32_000, 950 * 32, 400 * 32, 100 * 32, 7 * 32)
    assert from_flags(line).num_blocks(memory) == blocks


def test_without_a_device_only_a_given_pool_is_known():
    assert from_flags("vllm serve m --num-gpu-blocks-override 9").num_blocks() == 8
    with pytest.raises(FlagsError, match="num_blocks: vllm sizes its pool by"):
        from_flags("vllm serve m").num_blocks()


@pytest.mark.parametrize("sizes", [(10, 11, 0, 0, 1), (10, -1, 0, 0, 1), (10, 5, 0, 0, 0)])
def test_a_device_that_cannot_be(sizes):
    with pytest.raises(ValueError, match="(free|block) = .*: give"):
        Memory(*sizes)
