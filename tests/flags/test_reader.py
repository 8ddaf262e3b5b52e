"""What all systems share: forms of flags, errors, and tables that hold together."""

import inspect
import sys

import pytest

from cbjax import policies
from cbjax.flags import FlagsError, Server, Settings
from cbjax.policies import from_flags, to_flags
from cbjax.policies._flags import _table, tables
from cbjax.policies._flags._values import human

HERE = [name for name, table in tables().items() if (table.policy or name) in policies.names]


def bare(system: str) -> str:
    """The shortest line of a system."""
    table = tables()[system]
    variables = " ".join(f"{name}={value}" for name, value in table.when.items())
    return " ".join([variables, table.commands[0], "m" if table.model_first else "", *table.needs])


@pytest.mark.parametrize("system", HERE)
def test_a_bare_line_is_the_policy_with_its_own_defaults(system):
    server = from_flags(bare(system))
    assert server.system == system
    signature = inspect.signature(policies.get(server.policy.name))
    assert server.knobs == {name: knob.default for name, knob in signature.parameters.items()}
    defaults = policies.get(server.policy.name)()
    assert server.policy == defaults
    assert server.changed == {} and server.ignored == ()


@pytest.mark.parametrize(("system", "settings"), [
    ("vllm", dict(block_size=16, memory_fraction=0.92)),
    ("vllm_v0", dict(block_size=16, memory_fraction=0.9, swap_bytes=4 * 2**30)),
    ("sglang", dict(block_size=1)),
    ("tensorrt_llm", dict(block_size=32, memory_fraction=0.9)),
    ("tgi", dict(block_size=1, memory_fraction=1.0)),
    ("transformers", dict(block_size=256, memory_fraction=0.9)),
    ("sarathi", dict(block_size=16, memory_fraction=0.8)),
])
def test_the_defaults_of_settings(system, settings):
    model = "m" if tables()[system].model_first else None
    assert from_flags(bare(system)).settings == Settings(model=model, **settings)


@pytest.mark.parametrize("system", sorted(tables()))
def test_a_table_names_each_flag_once(system):
    table = tables()[system]
    names = [name for flag in table.flags for name in flag.names.split()]
    names += [*table.values.split(), *table.switches.split(), *table.lists.split()]
    assert len(names) == len(set(names)), sorted(x for x in set(names) if names.count(x) > 1)
    assert all(name.startswith("-") for name in names)
    for flag in table.flags:
        assert bool(flag.knob) + bool(flag.setting) + bool(flag.refused) == 1, flag
        assert flag.names or flag.env


@pytest.mark.parametrize("system", HERE)
def test_every_knob_of_a_table_is_one_of_its_policy(system):
    known = _table.knobs_of(system)
    for flag in tables()[system].flags:
        assert not flag.knob or flag.knob in known or flag.as_if is not None, flag
        assert flag.where is None or flag.where[0] in known


@pytest.mark.parametrize("system", HERE)
def test_every_refused_flag_says_why(system):
    for flag in tables()[system].flags:
        for name in flag.names.split() if flag.refused else ():
            word = "" if flag.const else " something"
            with pytest.raises(FlagsError, match=f"^{name}.*: {flag.refused.split(';')[0]}"):
                from_flags(f"{bare(system)} {name}{word}")


@pytest.mark.parametrize("system", HERE)
def test_every_ignored_flag_is_listed_as_written(system):
    table = tables()[system]
    for names, word in ((table.values, " w"), (table.switches, ""), (table.lists, " a b")):
        for name in names.split():
            listed = from_flags(f"{bare(system)} {name}{word}").ignored
            assert listed == (() if name in table.always else (f"{name}{word}",))


@pytest.mark.parametrize("system", HERE)
@pytest.mark.parametrize("name", ["--no-such-flag-at-all", "-zz", "--port2"])
def test_an_unknown_flag_is_named(system, name):
    with pytest.raises(FlagsError, match=f"^{name}: no such flag is known; "):
        from_flags(f"{bare(system)} {name} 1")


@pytest.mark.parametrize(("line", "near"), [
    ("vllm serve m --max-num-sequences 3", "--max-num-seqs"),
    ("vllm serve m --max-num-seq=3", "--max-num-seqs"),  # not even an abbreviation is guessed
    ("python -m sglang.launch_server --max_running_requests 3", "--max-running-requests"),
    ("trtllm-serve m --max-batch-size 3", "--max_batch_size"),
    ("text-generation-launcher --max-concurent-requests 3", "--max-concurrent-requests"),
    ("VLLM_LOGGING_LEVL=DEBUG vllm serve m", "VLLM_LOGGING_LEVEL"),
])
def test_the_nearest_known_names_are_the_remedy(line, near):
    with pytest.raises(FlagsError, match=f"did you mean .*{near}"):
        from_flags(line)


def test_forms_of_a_line():
    plain = from_flags("vllm serve m --max-num-seqs 64 --max-model-len 2048")
    for line in (
        "vllm serve m --max-num-seqs=64 --max-model-len=2048",
        "vllm serve --max-num-seqs 64 m --max-model-len 2048",
        "vllm serve --max_num_seqs 64 --max_model_len=2048 m",
        "vllm serve m \\\n    --max-num-seqs 64 \\\n    --max-model-len 2048",
        "/opt/bin/vllm serve 'm' --max-num-seqs '64' --max-model-len 2048",
        "python3.12 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 64 "
        "--max-model-len 2048",
        "vllm serve m --max-num-seqs 8 --max-num-seqs 64 --max-model-len 2048",  # the last one
        ["vllm", "serve", "m", "--max-num-seqs", "64", "--max-model-len", "2048"],
    ):
        assert from_flags(line) == plain, line


def test_other_variables_are_listed():
    server = from_flags("env CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=DEBUG vllm serve m")
    assert server.ignored == ("CUDA_VISIBLE_DEVICES=0,1", "VLLM_LOGGING_LEVEL=DEBUG")
    assert to_flags(server).startswith("CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=DEBUG vllm")


@pytest.mark.parametrize(("word", "value"), [
    ("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2m", 2_000_000), ("2M", 2**21),
    ("1g", 10**9), ("1G", 2**30), ("1t", 10**12), ("1T", 2**40), ("17", 17), ("-1", -1),
])
def test_numbers_for_people(word, value):
    assert human(word) == value


@pytest.mark.parametrize("word", ["1.5K", "k", "1kk", "many", ""])
def test_numbers_for_nobody(word):
    with pytest.raises(FlagsError, match="--max-num-seqs = .*: (give|a number with K.*1.5k)"):
        from_flags(["vllm", "serve", "m", "--max-num-seqs", word])


@pytest.mark.parametrize(("line", "message"), [
    ("vllm serve m --max-num-seqs", "--max-num-seqs: expected one argument"),
    ("vllm serve m --enable-chunked-prefill=yes", "enable-chunked-prefill: ignored explicit"),
    ("vllm serve m extra", "'extra': a word without a flag"),
    ("vllm serve m --trust-remote-code true", "'true': a word without a flag"),
    ("tritonserver --model-repository x", "no server is known by it; start with .*vllm serve"),
    ("", "no server is known by it"),
    ("vllm serve m --gpu-memory-utilization lots", "utilization = 'lots': give a number"),
])
def test_a_line_that_cannot_be_read(line, message):
    with pytest.raises(FlagsError, match=message):
        from_flags(line)


def test_a_system_or_knob_that_does_not_exist():
    with pytest.raises(FlagsError, match="system = 'triton': choose one of .*vllm"):
        from_flags("vllm serve m", "triton")
    with pytest.raises(FlagsError, match="max_seqs: vllm has no such knob"):
        Server("vllm", {"max_seqs": 3})


@pytest.mark.parametrize("settings", [
    dict(block_size=0), dict(num_blocks=0), dict(max_length=0), dict(memory_fraction=1.5),
    dict(memory_fraction=0.0), dict(swap_bytes=-1),
])
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} = .*: give"):
        Settings(**settings)


def test_a_new_system_is_one_new_file(tmp_path, monkeypatch):
    from cbjax.policies import _flags

    (tmp_path / "tiny_serve.py").write_text(
        "from cbjax.policies._flags._table import Flag, Settings, Table\n"
        "TABLE = Table(commands=('tiny-serve',), policy='orca', model_first=True,\n"
        "    flags=(Flag('--batch', 'max_bs', read=int),), switches='--quiet',\n"
        "    defaults=Settings(block_size=8), blocks=lambda server, memory: 1)\n"
    )
    monkeypatch.setattr(_flags, "__path__", [*_flags.__path__, str(tmp_path)])
    _table.tables.cache_clear()
    try:
        server = from_flags("tiny-serve m --batch 3 --quiet")
        assert server.policy == policies.orca(max_bs=3) and server.ignored == ("--quiet",)
        assert from_flags(to_flags(server)) == server
    finally:
        _table.tables.cache_clear()
        sys.modules.pop("cbjax.policies._flags.tiny_serve", None)
