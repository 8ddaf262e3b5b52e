"""vLLM's two engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax.flags import FlagsError
from cbjax.policies import from_flags, to_flags
from tests.flags.drawn import check_round_trip, counts, models, servers, shares, words

SETTINGS = dict(
    model=models, dtype=words, kv_dtype=words, max_length=counts, block_size=st.integers(1, 256),
    num_blocks=counts, memory_fraction=shares,
)
KNOBS = dict(
    max_num_seqs=st.integers(1, 512), max_num_batched_tokens=st.integers(512, 32_768),
    enable_chunked_prefill=st.booleans(),
)
IGNORED = ("--host 0.0.0.0", "--trust-remote-code", "-tp 2", "--chat-template 'a b'")


@given(servers(
    "vllm",
    dict(
        KNOBS, long_prefill_token_threshold=counts, policy=st.sampled_from(["fcfs", "priority"]),
        enable_prefix_caching=st.booleans(), scheduler_reserve_full_isl=st.booleans(),
        watermark=shares,
    ),
    dict(SETTINGS, kv_bytes=counts), *IGNORED,
))
def test_v1_goes_there_and_back(server):
    check_round_trip(server)


@given(servers(
    "vllm_v0",
    dict(
        KNOBS, preemption_mode=st.sampled_from(["recompute", "swap"]),
        scheduler_delay_factor=shares, watermark=st.just(0.01),
    ),
    dict(SETTINGS, swap_bytes=st.integers(0, 2**40)), *IGNORED,
))
def test_v0_goes_there_and_back(server):
    check_round_trip(server)


def test_every_flag_of_a_line_is_read():
    server = from_flags(
        "vllm serve org/model --max-num-seqs 64 --max-num-batched-tokens=25.6k "
        "--no-enable-chunked-prefill --enable-prefix-caching --no-scheduler-reserve-full-isl "
        "--long-prefill-token-threshold 1K --scheduling-policy priority --watermark 0.02 "
        "--max-model-len 8k --block-size 32 --gpu-memory-utilization .8 --dtype bfloat16 "
        "--kv-cache-dtype fp8 --kv-cache-memory-bytes 2G --tensor-parallel-size 2"
    )
    assert server.system == "vllm" and server.seats == 64
    assert server.knobs == dict(
        max_num_seqs=64, max_num_batched_tokens=25_600, enable_chunked_prefill=False,
        enable_prefix_caching=True, scheduler_reserve_full_isl=False, policy="priority",
        long_prefill_token_threshold=1024, watermark=0.02, prefix_visible_at="schedule",
    )
    settings = server.settings
    assert (settings.model, settings.dtype, settings.kv_dtype) == ("org/model", "bfloat16", "fp8")
    assert (settings.max_length, settings.block_size) == (8000, 32)
    assert (settings.memory_fraction, settings.kv_bytes) == (0.8, 2 * 2**30)
    assert server.ignored == ("--tensor-parallel-size 2",)
    policy = server.policy
    assert policy.name == "vllm" and policy.knobs["max_num_seqs"] == 64


def test_the_null_block_is_not_counted():
    assert from_flags("vllm serve m --num-gpu-blocks-override 129").num_blocks() == 128
    line = to_flags(from_flags("vllm serve m --num-gpu-blocks-override 129"))
    assert "--num-gpu-blocks-override 129" in line


@pytest.mark.parametrize(("line", "seats", "budget"), [
    ("--max-model-len 4", 256, 1024),  # no more than full seats of longest sequences
    ("--max-model-len 4 --max-num-seqs 2", 2, 8),
    ("--max-num-batched-tokens 100", 100, 100),  # as many seats as tokens
    ("--max-model-len 9000 --no-enable-chunked-prefill", 256, 9000),  # whole prompts must fit
    ("--max-model-len 9000", 256, 2048),
    ("--max-model-len auto", 256, 2048),
    ("--max-model-len -1", 256, 2048),
])
def test_what_v1_derives(line, seats, budget):
    server = from_flags(f"vllm serve m {line}")
    assert (server.seats, server.knobs["max_num_batched_tokens"]) == (seats, budget)


@pytest.mark.parametrize(("line", "chunked", "budget"), [
    ("--max-model-len 4096", False, 4096),
    ("--max-model-len 1024", False, 2048),
    ("--max-model-len 32769", True, 2048),  # long sequences are computed in chunks
    ("--max-model-len 32769 --no-enable-chunked-prefill", False, 32769),
    ("--max-model-len 4096 --enable-chunked-prefill", True, 2048),
])
def test_what_v0_derives(line, chunked, budget):
    server = from_flags(f"VLLM_USE_V1=0 vllm serve m {line}")
    assert server.system == "vllm_v0"
    assert server.knobs["enable_chunked_prefill"] is chunked
    assert server.knobs["max_num_batched_tokens"] == budget


def test_v0_is_named_or_said_by_its_variable():
    line = "vllm serve m --swap-space 2.5"
    assert from_flags(line, "vllm_v0").settings.swap_bytes == 2_684_354_560
    assert from_flags("VLLM_USE_V1=0 " + line).system == "vllm_v0"
    assert from_flags("VLLM_USE_V1=1 " + line).system == "vllm"


def test_what_is_not_said_is_noted():
    notes = " ".join(from_flags("vllm serve m").notes)
    for knob in ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"):
        assert knob in notes
        value = "" if knob == "enable_prefix_caching" else " 2048"
        said = from_flags(f"vllm serve m --{knob.replace('_', '-')}{value}")
        assert knob not in " ".join(said.notes)


@pytest.mark.parametrize("line", [
    "--speculative-config '{\"num_speculative_tokens\": 3}'", "--pipeline-parallel-size 2", "-dp 4",
    "--async-scheduling", "--scheduler-cls my.Scheduler", "--max-num-partial-prefills 2",
    "--enable-lora", "--kv-transfer-config {}", "--task embed",
])
def test_what_scheduling_depends_on_and_is_not_modelled_is_refused(line):
    flag = line.split()[0]
    with pytest.raises(FlagsError, match=f"^{flag}.*: .*(modelled|read|dropped)"):
        from_flags(f"vllm serve m {line}")


def test_a_refused_flag_that_changes_nothing_is_ignored():
    line = "vllm serve m --pipeline-parallel-size 1 --no-async-scheduling"
    assert from_flags(line).ignored == ("--pipeline-parallel-size 1", "--no-async-scheduling")


def test_the_policy_refuses_what_the_server_would():
    with pytest.raises(ValueError, match="max_num_batched_tokens = 8 is below max_num_seqs"):
        from_flags("vllm serve m --max-num-batched-tokens 8 --max-num-seqs 16")
