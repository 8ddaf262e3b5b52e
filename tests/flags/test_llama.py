"""llama.cpp's server and Ollama, where this version has their policies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbjax import policies
from cbjax.flags import FlagsError, Memory, llama_cells
from cbjax.policies import from_flags
from tests.flags.drawn import check_round_trip

here = pytest.mark.skipif("llama_cpp" not in policies.names, reason="no such policy here")


@pytest.mark.parametrize(("ctx_size", "slots", "unified", "pool", "own"), [
    (8192, 4, False, 8192, 2048),
    (8192, 3, False, 8448, 2816),  # 2730 is padded to 2816 and the pool follows
    (8192, 3, True, 8192, 8192),
    (1000, 1, False, 1024, 1024),
    (4096, 10, False, 5120, 512),
])
def test_cells_are_dealt_in_256s(ctx_size, slots, unified, pool, own):
    assert llama_cells(ctx_size, slots, unified) == (pool, own)


@pytest.mark.skipif("llama_cpp" in policies.names, reason="the policy is here")
@pytest.mark.parametrize("line", ["llama-server -m m.gguf", "OLLAMA_NUM_PARALLEL=2"])
def test_a_policy_that_is_not_here_is_named(line):
    with pytest.raises(FlagsError, match="there is no policy '(llama_cpp|ollama)'"):
        from_flags(line)


@here
def test_short_forms():
    server = from_flags("llama-server -m m.gguf -c 8192 -np 3 -b 512 -ub 128 -nocb -ngl 99")
    assert server.seats == 3 and server.knobs["n_batch"] == 512
    assert server.knobs["cont_batching"] is False
    assert server.settings.max_length == 2816 and server.num_blocks() == 8448
    assert server.ignored == ("-ub 128", "-ngl 99")
    shared = from_flags("llama-server -m m.gguf -c 8192 -np 3 -kvu")
    assert shared.settings.max_length == 8192 and shared.knobs["kv_unified"]
    auto = from_flags("llama-server -hf org/m -c 0")
    assert auto.seats == 4 and auto.settings.max_length is None
    assert auto.num_blocks(Memory(1, 1, 0, 0, 1, context=5000)) == 5120


@here
def test_glued_and_unknown_short_forms_are_not_guessed():
    with pytest.raises(FlagsError, match="^-npx: no such flag"):
        from_flags("llama-server -m m -npx 3")
    with pytest.raises(FlagsError, match="^-c4096: no such flag"):
        from_flags("llama-server -m m -c4096")


@here
@given(st.fixed_dictionaries({}, optional={
    "-c": st.integers(1, 10**6), "-np": st.integers(1, 64), "-b": st.integers(64, 8192),
    "-ub": st.integers(1, 512),
}), st.sets(st.sampled_from(["-kvu", "-nocb", "--cache-prompt", "--jinja"])))
def test_llama_there_and_back(values, switches):
    words = [part for name, value in values.items() for part in (name, str(value))]
    check_round_trip(from_flags(["llama-server", "-m", "m.gguf", *words, *sorted(switches)]))


@here
@given(st.fixed_dictionaries({}, optional={
    "OLLAMA_NUM_PARALLEL": st.integers(1, 64), "OLLAMA_CONTEXT_LENGTH": st.integers(1, 10**5),
    "OLLAMA_KEEP_ALIVE": st.sampled_from(["5m", "1h"]),
}))
def test_ollama_there_and_back(values):
    words = [f"{name}={value}" for name, value in values.items()]
    server = from_flags([*words, "ollama", "serve"])
    if words:
        assert from_flags(words) == server
    check_round_trip(server)


@here
def test_ollama_gives_every_slot_its_context():
    server = from_flags("OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=8192 ollama serve")
    assert server.seats == 4 and server.settings.max_length == 8192
    assert server.num_blocks() == 4 * 8192
    with pytest.raises(FlagsError, match="OLLAMA_NUM_PARALEL: no such flag.*OLLAMA_NUM_PARALLEL"):
        from_flags("OLLAMA_NUM_PARALEL=4 ollama serve")
