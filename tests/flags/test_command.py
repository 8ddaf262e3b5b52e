"""`python -m cbjax.flags` and the overrides that it prints."""

import shlex

import pytest

import cbjax
from cbjax.flags import main
from cbjax.policies import from_flags

LINES = [
    "vllm serve m --max-num-seqs 8 --max-num-batched-tokens 64 --watermark 0.1 "
    "--num-gpu-blocks-override 129 --block-size 4 --max-model-len 32 --scheduling-policy priority",
    "VLLM_USE_V1=0 vllm serve m --max-num-seqs 4 --max-model-len 32 --preemption-mode swap",
    "python -m sglang.launch_server --model m --max-running-requests 3 --chunked-prefill-size -1",
    "trtllm-serve m --max_batch_size 8 --max_num_tokens 64 --enable_chunked_prefill",
    "PREFILL_CHUNKING=false text-generation-launcher --model-id m --max-batch-prefill-tokens 64",
    "transformers serve m --continuous-batching --cb-max-batch-tokens 2048",
    "python -m sarathi.entrypoints.openai.api_server --scheduler_config_type ORCA",
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("experiment", ["worked_example", "budget_block_grid"])
def test_the_overrides_choose_the_same_policy(line, experiment):
    server = from_flags(line)
    cells = cbjax.load_config(experiment, server.overrides(server.settings.num_blocks)).cells
    for cell in cells:
        assert cell.config.policy == {"name": server.policy.name, **server.knobs}
        assert cell.config.kv.block_size == server.settings.block_size
        if server.settings.num_blocks is not None:
            assert cell.config.kv.blocks == server.settings.num_blocks
        if server.settings.max_length is not None:
            assert cell.config.model.max_length == server.settings.max_length


def test_what_is_printed(capsys):
    assert main([f"{LINES[0]} --port 80"]) == 0
    printed = capsys.readouterr().out
    assert "cbjax.policies.vllm(max_num_batched_tokens=64, max_num_seqs=8" in printed
    assert "128 KV blocks of 4 tokens" in printed
    assert "ignored   --port 80\n" in printed
    assert "note      enable_prefix_caching: " in printed
    overrides = shlex.split(printed.splitlines()[-1].removeprefix("run"))
    assert overrides == from_flags(LINES[0]).overrides(128)


def test_a_device_sizes_the_pool(capsys):
    device = "--total 80GiB --free 79GiB --weights 15GiB --activations 2GiB --block 2097152"
    assert main([*device.split(), "vllm", "serve", "m", "--gpu-memory-utilization", "0.9"]) == 0
    assert f"{(72 - 17) * 512 - 1} KV blocks" in capsys.readouterr().out
    assert main(["vllm serve m"]) == 0
    printed = capsys.readouterr().out
    assert "give a Memory" in printed and "kv.num_blocks" not in printed


def test_errors_are_one_line(capsys):
    assert main(["vllm serve m --max-num-sequences 3"]) == 2
    assert capsys.readouterr().err.startswith("error: --max-num-sequences: no such flag")
    for arguments in ([], ["--total", "80GiB", "vllm serve m"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "give " in capsys.readouterr().err
