"""Tokenizers: bytes of tokens, the two sources of a tokenizer, chat templates in a sandbox."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from cbjax.models.chat import render_chat
from cbjax.models.config import ModelConfig
from cbjax.models.tiny import tiny_config, tiny_tokenizer
from cbjax.models.token_bytes import sentence_bytes, spelled_bytes
from cbjax.models.tokenizer_gguf import CONTROL, CUTTERS, USER_DEFINED, gguf_tokenizer
from cbjax.models.tokenizer_hf import hf_tokenizer

CONFIG = tiny_config("tiny")
TINY = tiny_tokenizer(CONFIG)
SPECIAL = ["<|end|>", "<|turn|>"]
SAMPLE = "The year 1969, don't you think?\n\n  Naïve café: 日本語 🔥 👍🏽 x=12345;\tend "


def trained() -> tokenizers.Tokenizer:
    """A small byte-level BPE with digits apart, as SmolLM2's is."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([SAMPLE * 3, "the other thing that they think there"] * 4, trainer)
    return backend


def as_gguf(backend: tokenizers.Tokenizer, **fields) -> dict:
    described = json.loads(backend.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].get)
    metadata = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [CONTROL if token in SPECIAL else 1 for token in tokens],
        "merges": [" ".join(merge) for merge in described["merges"]],
        "bos_token_id": 1,
    }
    found = {f"tokenizer.ggml.{key}": value for key, value in (metadata | fields).items()}
    return found | {"tokenizer.chat_template": "{{ messages[0]['content'] }}<|turn|>"}


@given(st.text())
def test_token_bytes_join_to_the_text(text: str) -> None:
    ids = TINY.encode(text)
    assert b"".join(TINY.tokens_to_bytes(ids)) == text.encode()
    assert TINY.decode(ids) == text


def test_special_and_padding_ids_have_no_bytes() -> None:
    ids = TINY.encode("<|im_start|>a<|im_end|>")
    assert ids == [257, 97, 258]
    assert TINY.tokens_to_bytes([*ids, 259, 10_000, -1]) == [b"", b"a", b"", b"", b"", b""]
    assert TINY.decode(ids) == "a"


def test_half_a_character_decodes_to_one_replacement() -> None:
    """FAULTS G1."""
    ids = TINY.encode("a🔥")
    assert TINY.decode(ids[:-1]) == "a\ufffd"
    assert TINY.decode([255, 97]) == "\ufffda"


def test_tokens_are_spelled_in_both_ways() -> None:
    assert spelled_bytes("Ġthe") == b" the" and spelled_bytes("Ċ") == b"\n"
    assert spelled_bytes("日") == "日".encode()  # outside the alphabet: an added token
    assert sentence_bytes("▁the") == b" the" and sentence_bytes("<0x0A>") == b"\n"


def test_a_tokenizer_from_gguf_equals_the_one_it_was_written_from() -> None:
    backend = trained()
    made = gguf_tokenizer(as_gguf(backend), CONFIG)
    for text in (SAMPLE, "  1234 a  b\n\n", "don't 日本", ""):
        assert made.encode(text) == backend.encode(text).ids
        assert made.decode(made.encode(text)) == text
    assert made.encode("<|turn|>the") == backend.encode("<|turn|>the").ids
    assert made.vocab_size == 322 and made.eos_ids == CONFIG.eos_ids
    alone = made.encode_chat([{"role": "user", "content": "hi"}])
    assert alone[-1] == 1 and made.decode(alone) == "hi"


@pytest.mark.parametrize("name", sorted(CUTTERS))
def test_every_way_of_cutting_words_loses_nothing(name: str) -> None:
    made = gguf_tokenizer(as_gguf(trained(), pre=name), CONFIG)
    assert made.decode(made.encode(SAMPLE)) == SAMPLE


def test_ways_of_cutting_differ_where_they_should() -> None:
    def pieces(name: str, text: str) -> list[str]:
        cut = gguf_tokenizer(as_gguf(trained(), pre=name), CONFIG).backend.pre_tokenizer
        return [piece for piece, _ in cut.pre_tokenize_str(text)]

    assert pieces("gpt-2", "a 12345") == ["a", "Ġ12345"]
    assert pieces("smollm", "a 123") == ["a", "Ġ", "1", "2", "3"]
    assert pieces("llama-bpe", "a 12345") == ["a", "Ġ", "123", "45"]
    assert pieces("qwen2", "a 123") == ["a", "Ġ", "1", "2", "3"]
    assert pieces("qwen2", "DON'T") == ["DON", "'T"]
    assert pieces("tekken", "aB") == ["a", "B"]


def test_user_defined_tokens_show_and_control_tokens_do_not() -> None:
    metadata = as_gguf(trained())
    metadata["tokenizer.ggml.token_type"][1] = USER_DEFINED
    made = gguf_tokenizer(metadata, CONFIG)
    assert made.tokens_to_bytes([0, 1]) == [b"", b"<|turn|>"]
    assert made.encode("<|turn|>") == [1]


def test_unsupported_gguf_tokenizers_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="deepseek-llm.*smollm.*tokenizer.json"):
        gguf_tokenizer(as_gguf(trained(), pre="deepseek-llm"), CONFIG)
    with pytest.raises(ValueError, match="'t5' is not supported.*gpt2"):
        gguf_tokenizer(as_gguf(trained(), model="t5"), CONFIG)


def sentence_metadata() -> dict:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "t", "h", "e", "a", "th", "▁th", "▁the", "he", "▁a"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces + words,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
        "tokenizer.ggml.token_type": [2, CONTROL, CONTROL, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_a_sentencepiece_tokenizer_from_gguf() -> None:
    made = gguf_tokenizer(sentence_metadata(), CONFIG)
    ids = made.encode("the a é")
    assert [made.backend.id_to_token(i) for i in ids] == [
        "<s>", "▁the", "▁a", "▁", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert b"".join(made.tokens_to_bytes(ids)) == " the a é".encode()
    assert made.encode("the", special=False) == ids[1:2]


def write_folder(folder: Path, backend: tokenizers.Tokenizer, settings: dict) -> None:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_tokenizer_from_a_folder(tmp_path: Path) -> None:
    """FAULTS F14: the tokenizer's own end token joins those of the config."""
    backend = trained()
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}{{ eos_token }}"
    settings = {"eos_token": {"content": "<|end|>"}, "bos_token": "<|turn|>"}
    write_folder(tmp_path, backend, settings | {"chat_template": template})
    made = hf_tokenizer(tmp_path, CONFIG)
    assert made.encode(SAMPLE) == backend.encode(SAMPLE).ids and not made.add_bos
    assert set(made.eos_ids) == {0, 256, 258} and made.bos_id == 1
    assert made.decode(made.encode(SAMPLE)) == SAMPLE
    assert made.encode_chat([{"role": "user", "content": "hi"}])[0] == 1
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['role'] }}")
    chat = hf_tokenizer(tmp_path, CONFIG).encode_chat([{"role": "user", "content": "hi"}])
    assert made.decode(chat) == "user"


def test_a_folder_whose_tokenizer_begins_texts_is_obeyed(tmp_path: Path) -> None:
    backend = trained()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|turn|> $A", special_tokens=[("<|turn|>", 1)]
    )
    write_folder(tmp_path, backend, {"chat_template": "<|turn|>{{ messages[0]['content'] }}"})
    made = hf_tokenizer(tmp_path, CONFIG)
    assert made.encode("the") == backend.encode("the").ids and made.encode("the")[0] == 1
    assert made.encode("<|turn|>the").count(1) == 1
    assert made.encode_chat([{"role": "user", "content": "the"}]).count(1) == 1


def test_folders_without_a_readable_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokenizer.json is missing"):
        hf_tokenizer(tmp_path, CONFIG)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read"):
        hf_tokenizer(tmp_path, CONFIG)
    tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(ValueError, match="byte-level BPE and SentencePiece"):
        hf_tokenizer(tmp_path, CONFIG)


def test_chat_templates_get_what_they_expect() -> None:
    messages = [{"role": "user", "content": "é"}]
    template = """
    {%- for m in messages %}
        {{- m | tojson }}
        {%- break %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{ eos_token }}{% endif %}"""
    shown = render_chat(template, messages, {"eos_token": "#"})
    assert shown == '{"role": "user", "content": "é"}#'
    with pytest.raises(ValueError, match="refuses them: only system"):
        render_chat("{{ raise_exception('only system') }}", messages, {})
    with pytest.raises(ValueError, match=r"messages\[0\]: content missing"):
        render_chat("", [{"role": "user"}], {})
    for broken in ("{% if %}", "{{ 1 + 'a' }}", "{{ messages[5]['role'] }}"):
        with pytest.raises(ValueError, match="chat template refuses"):
            render_chat(broken, messages, {})


def test_chat_templates_cannot_leave_their_sandbox() -> None:
    messages = [{"role": "user", "content": "x"}]
    for attack in (
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__ }}{{ ''.__class__.__base__ }}",
        "{{ messages.append(1) }}",
    ):
        try:
            shown = render_chat(attack, messages, {})
        except ValueError:
            continue
        assert "class" not in shown and len(messages) == 1


def test_no_chat_template_is_an_error_with_the_remedy() -> None:
    made = gguf_tokenizer(sentence_metadata(), ModelConfig("llama", 300, 8, 1, 1, 1, 8, 8, 64))
    with pytest.raises(ValueError, match="no chat template; pass the prompt as text"):
        made.encode_chat([{"role": "user", "content": "hi"}])
