"""TensorRT-LLM, TGI, transformers and Sarathi-Serve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax.flags import FlagsError, Server, Settings
from cbjax.policies import from_flags, to_flags
from tests.flags.drawn import check_round_trip, counts, models, servers, shares, words


@given(servers(
    "tensorrt_llm",
    dict(
        max_batch_size=counts, max_num_tokens=st.integers(64, 65_536),
        enable_chunked_prefill=st.booleans(),
    ),
    dict(model=models, kv_dtype=words, max_length=counts, memory_fraction=shares),
    "--tp_size 2", "--trust_remote_code",
))
def test_tensorrt_llm_there_and_back(server):
    check_round_trip(server)


@given(servers(
    "tgi",
    dict(
        max_batch_prefill_tokens=counts, max_batch_size=counts, max_concurrent_requests=counts,
        max_input_tokens=counts, waiting_served_ratio=shares, max_waiting_tokens=counts,
        prefill_chunking=st.booleans(),
    ),
    dict(
        model=models, dtype=words, kv_dtype=words, max_length=counts, memory_fraction=shares,
        block_size=st.sampled_from([1, 16, 256]),
    ),
    "-p 80", "--json-output", "HF_TOKEN=x",
))
def test_tgi_there_and_back(server):
    check_round_trip(server)


@given(servers(
    "transformers",
    dict(max_batch_tokens=counts),
    dict(
        model=models, dtype=words, block_size=counts, num_blocks=counts, memory_fraction=shares
    ),
    "--port 80", "--compile",
))
def test_transformers_there_and_back(server):
    check_round_trip(server)


SARATHI = {
    "sarathi": dict(chunk_size=st.integers(1, 8192)),
    "simple_chunking": dict(chunk_size=st.integers(1, 8192)),
    "vllm": dict(max_batched_tokens=counts),
    "orca": {},
    "faster_transformer": {},
}


@given(st.data(), st.sampled_from(sorted(SARATHI)))
def test_sarathi_there_and_back(data, scheduler):
    server = data.draw(servers(
        "sarathi", dict(SARATHI[scheduler], max_num_seqs=counts),
        dict(
            model=models, dtype=words, block_size=counts, max_length=counts, memory_fraction=shares
        ),
        "--host 0.0.0.0", "--parallel_config_tensor_parallel_size 2",
    ))
    knobs = server.knobs | {"scheduler": scheduler}
    check_round_trip(Server("sarathi", knobs, server.settings, server.ignored))


def test_sarathi_reads_the_flags_of_its_scheduler_only():
    command = "python -m sarathi.entrypoints.openai.api_server "
    server = from_flags(
        command + "--vllm_scheduler_config_max_num_seqs 3 --scheduler_config_type VLLM "
        "--sarathi_scheduler_config_chunk_size 64"
    )
    assert server.knobs["scheduler"] == "vllm" and server.seats == 3
    assert server.ignored == ("--sarathi_scheduler_config_chunk_size 64",)
    server = from_flags(command + "--sarathi_scheduler_config_chunk_size 64")
    assert server.knobs["chunk_size"] == 64 and server.ignored == ()


def test_sarathi_dynamic_chunks():
    server = from_flags(
        "python -m sarathi.entrypoints.api_server "
        "--sarathi_scheduler_config_enable_dynamic_chunking_schedule True "
        "--sarathi_scheduler_config_low_chunk_size 64 "
        "--sarathi_scheduler_config_high_chunk_size 256 "
        "--sarathi_scheduler_config_chunk_schedule_max_tokens 1024 "
        "--sarathi_scheduler_config_chunk_schedule_stages 4"
    )
    assert server.policy.budget == "high_chunk_size"
    check_round_trip(server)


def test_sarathi_stages_are_noted_refused_and_written():
    command = "python -m sarathi.entrypoints.openai.api_server"
    flag = "--parallel_config_pipeline_parallel_size"
    assert flag in from_flags(command).notes[0]
    assert f"{flag} 1" in to_flags(from_flags(command))
    with pytest.raises(FlagsError, match="one pipeline stage"):
        from_flags(f"{command} {flag} 2")


def test_tensorrt_llm_both_names_of_the_memory_flag():
    for flag in ("--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction"):
        server = from_flags(f"trtllm-serve m {flag} 0.5 --max_seq_len 99 --max_batch_size 8")
        assert (server.settings.memory_fraction, server.settings.max_length) == (0.5, 99)
        assert server.seats == 8
    with pytest.raises(FlagsError, match="--config x.yaml: a file"):
        from_flags("trtllm-serve m --config x.yaml")
    with pytest.raises(FlagsError, match="MAX_UTILIZATION.*no flag of trtllm-serve"):
        to_flags(Server("tensorrt_llm", {"capacity_scheduler_policy": "MAX_UTILIZATION"}))


def test_tgi_flags_are_variables_too():
    by_flag = from_flags("text-generation-launcher --model-id m --max-waiting-tokens 5")
    by_variable = from_flags("MODEL_ID=m MAX_WAITING_TOKENS=5 text-generation-launcher")
    assert by_flag == by_variable and by_flag.knobs["max_waiting_tokens"] == 5
    server = from_flags("PREFILL_CHUNKING=0 ATTENTION=paged text-generation-launcher")
    assert server.knobs["prefill_chunking"] is False and server.settings.block_size == 16
    with pytest.raises(FlagsError, match="ATTENTION = 'x': choose one of flashinfer"):
        from_flags("ATTENTION=x text-generation-launcher")


def test_tgi_requests_inside_bound_the_batch():
    assert from_flags("text-generation-launcher --max-concurrent-requests 512").seats == 512
    line = "text-generation-launcher --max-concurrent-requests 512 --max-batch-size 4"
    assert from_flags(line).seats == 4


def test_tgi_speculation_is_refused():
    with pytest.raises(FlagsError, match="--speculate 2: speculative"):
        from_flags("text-generation-launcher --speculate 2")


def test_transformers_needs_its_continuous_mode():
    with pytest.raises(FlagsError, match="--continuous-batching: without it"):
        from_flags("transformers serve m")
    server = from_flags("transformers serve m --continuous-batching --cb-num-blocks 9")
    assert server.num_blocks() == 9 and server.ignored == ()
    with pytest.raises(FlagsError, match="scheduler_type = 'prefill_first': no flag of transf"):
        to_flags(Server("transformers", {"scheduler_type": "prefill_first"}, Settings(model="m")))
