"""SGLang."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax import policies
from cbjax.flags import FlagsError, Memory, sglang_blocks, sglang_fraction
from cbjax.policies import from_flags
from tests.flags.drawn import check_round_trip, counts, models, servers, shares, words

GIB = 2**30


@given(servers(
    "sglang",
    dict(
        max_running_requests=counts, chunked_prefill_size=st.sampled_from([-1, 64, 4096]),
        max_prefill_tokens=counts, schedule_policy=st.sampled_from(["fcfs", "lof", "lpm"]),
        schedule_conservativeness=shares, enable_mixed_chunk=st.booleans(),
        disable_overlap_schedule=st.booleans(), enable_priority_scheduling=st.booleans(),
        priority_scheduling_preemption_threshold=counts,
        schedule_low_priority_values_first=st.booleans(), init_new_token_ratio=shares,
        min_new_token_ratio_factor=shares, new_token_ratio_decay_steps=counts,
        retract_decode_steps=counts,
    ),
    dict(
        model=models, dtype=words, kv_dtype=words, max_length=counts, block_size=counts,
        memory_fraction=shares, pool_tokens=counts,
    ),
    "--host ::", "--tp-size 4", "--enable-metrics", "HF_HOME=/cache",
))
def test_there_and_back(server):
    check_round_trip(server)


def test_flags_and_variables():
    server = from_flags(
        "SGLANG_INIT_NEW_TOKEN_RATIO=0.5 python3 -m sglang.launch_server --model-path m "
        "--chunked-prefill-size -1 --max-running-requests=7 --enable-mixed-chunk "
        "--schedule-policy lof --page-size 16 --max-total-tokens 1000 --disable-radix-cache"
    )
    knobs = server.knobs
    assert (knobs["chunked_prefill_size"], server.seats) == (-1, 7)
    assert knobs["enable_mixed_chunk"] and knobs["schedule_policy"] == "lof"
    assert knobs["init_new_token_ratio"] == 0.5
    assert server.num_blocks() == 62
    if "disable_radix_cache" in knobs:
        assert knobs["disable_radix_cache"]
    else:
        assert server.ignored == ("--disable-radix-cache",)


def test_without_a_bound_on_chunks_there_is_no_budget():
    overrides = from_flags(
        "python -m sglang.launch_server --model m --chunked-prefill-size -1"
    ).overrides()
    assert "budget=null" in overrides and "policy.chunked_prefill_size=-1" in overrides


@pytest.mark.parametrize("line", [
    "--speculative-algorithm EAGLE", "--dp-size 2", "--disaggregation-mode prefill",
    "--max-queued-requests 9", "--enable-dp-attention", "--num-continuous-decode-steps 2",
])
def test_refused(line):
    with pytest.raises(FlagsError, match=f"^{line}: .*model"):
        from_flags(f"python -m sglang.launch_server --model m {line}")


def test_the_flag_is_a_share_of_what_was_free():
    memory = Memory(80 * GIB, 78 * GIB, 16 * GIB, 5 * GIB, 2**20)
    # 0.8 x 78 GiB less 16 GiB of weights; activations live outside.
    assert sglang_blocks(memory, 0.8, 16) == pytest.approx((0.8 * 78 - 16) * 1024, abs=1)
    assert sglang_blocks(memory, 0.8, 16, max_total_tokens=1000) == 62
    assert sglang_blocks(memory, 0.1, 16) == 0


@pytest.mark.parametrize(("gib", "chunk", "fraction"), [
    (24, 2048, round((24 * 1024 - 512 - 2048 * 1.5 - 48 - 128) / (24 * 1024), 3)),
    (80, 8192, 0.84),  # at least 10 GiB: 512 + 12288 + 512 + 128 MiB are more
    (80, 2048, 0.875),
    (192, 16384, round(1 - (512 + 24576 + 1024 + 128) / (192 * 1024), 3)),
])
def test_the_reserve_when_nobody_gave_a_share(gib, chunk, fraction):
    assert sglang_fraction(gib * GIB, chunk, 16384) == pytest.approx(fraction, abs=6e-3)
    assert sglang_fraction(gib * GIB, -1, chunk) == sglang_fraction(gib * GIB, chunk, 1)


def test_the_share_is_derived_for_a_device():
    memory = Memory(80 * GIB, 80 * GIB, 16 * GIB, 0, 2**17)
    server = from_flags("python -m sglang.launch_server --model m")
    share = sglang_fraction(80 * GIB, policies.sglang().knobs["chunked_prefill_size"], 16384)
    assert server.num_blocks(memory) == sglang_blocks(memory, share, 1)
