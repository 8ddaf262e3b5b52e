"""Flags in the YAML file that a command line names."""

import pytest

from cbjax.flags import FlagsError
from cbjax.policies import from_flags, to_flags


@pytest.fixture
def line(tmp_path):
    """Writes a file and returns the line of a server that reads it."""

    def write(text: str, rest: str = "", command: str = "vllm serve m") -> str:
        (tmp_path / "flags.yaml").write_text(text)
        return f"{command} --config {tmp_path / 'flags.yaml'} {rest}"

    return write


def test_a_file_says_what_the_line_would(line):
    text = "max-num-seqs: 64\nmax_num_batched_tokens: 1k\nno-enable-chunked-prefill: true\n"
    server = from_flags(line(text, "--max-model-len 512"))
    same = "--max-num-seqs 64 --max-num-batched-tokens 1k --no-enable-chunked-prefill"
    assert server == from_flags(f"vllm serve m {same} --max-model-len 512")
    assert from_flags(to_flags(server)) == server


@pytest.mark.parametrize("rest", ["--max-num-seqs 8", "--max-num-seqs=8"])
def test_the_line_wins(line, rest):
    assert from_flags(line("max-num-seqs: 64\n", rest)).knobs["max_num_seqs"] == 8
    model = from_flags(line("model: other\nmax-num-seqs: 64\n"))
    assert model.settings.model == "m" and model.knobs["max_num_seqs"] == 64
    assert from_flags(line("model: other\n", command="vllm serve")).settings.model == "other"


def test_lists_mappings_and_switches(line):
    text = """
served-model-name: [a, b]
compilation-config: {level: 3}
trust-remote-code: true
enforce-eager: false
max-num-seqs: 16
"""
    server = from_flags(line(text))
    assert server.ignored == (
        "--served-model-name a b", "--compilation-config '{\"level\": 3}'", "--trust-remote-code",
    )
    assert server.knobs["max_num_seqs"] == 16


def test_other_servers(line):
    assert from_flags(
        line("max-running-requests: 9\n", command="python -m sglang.launch_server --model-path m")
    ).knobs["max_running_requests"] == 9
    old = from_flags(line("preemption-mode: swap\n", command="VLLM_USE_V1=0 vllm serve m"))
    assert old.system == "vllm_v0" and old.knobs["preemption_mode"] == "swap"


@pytest.mark.parametrize(("text", "problem"), [
    ("enable-chunked-prefill: false\n", "write no-enable-chunked-prefill: true"),
    ("max-num-seqz: 64\n", "--max-num-seqz: no such flag is known; did you mean --max-num-seqs"),
    ("max-num-seqs:\n", "max-num-seqs has no value"),
    ("max-num-seqs: many\n", "--max-num-seqs = 'many'"),
    ("- 64\n", "give one flag per line"),
    ("{", "while parsing"),
    ("speculative-config: {model: n}\n", "speculative decoding is not modelled"),
])
def test_what_a_file_may_not_say(line, text, problem):
    with pytest.raises(FlagsError, match=problem):
        from_flags(line(text))


def test_the_file_must_be_there(line, tmp_path):
    with pytest.raises(FlagsError, match="No such file"):
        from_flags(f"vllm serve m --config {tmp_path / 'none.yaml'}")
    with pytest.raises(FlagsError, match="given 2 times"):
        from_flags(line("max-num-seqs: 1\n", "--config other.yaml"))
