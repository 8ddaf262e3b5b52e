"""A tokenizer from the metadata of a GGUF file.

GGUF keeps the vocabulary, the merges or scores, and only the *name* of the rule that cuts text
into words; the rules are written out here.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from cbjax.models.config import ModelConfig
from cbjax.models.token_bytes import sentence_bytes, spelled_bytes
from cbjax.models.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4  # kinds of token; the others are ordinary

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Name in the file -> the pattern of a word, or None for GPT-2's own; whether digits stand alone.
CUTTERS: dict[str, tuple[str | None, bool]] = {
    "default": (None, False),
    "gpt-2": (None, False),
    "smollm": (None, True),
    "llama-bpe": (_WORDS.format(digits=r"\p{N}{1,3}"), False),
    "qwen2": (_WORDS.format(digits=r"\p{N}"), False),
    "tekken": (_TEKKEN, False),
}


def gguf_tokenizer(metadata: Mapping[str, Any], config: ModelConfig) -> Tokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        ValueError: the file has none, or one of a kind that is not supported.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if kind not in ("gpt2", "llama") or not tokens:
        raise ValueError(
            f"tokenizer.ggml.model: {kind!r} is not supported; supported are gpt2 (byte-level BPE) "
            "and llama (SentencePiece)"
        )
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    backend = _byte_level(metadata, tokens) if kind == "gpt2" else _sentence_piece(metadata, tokens)
    to_bytes = spelled_bytes if kind == "gpt2" else sentence_bytes
    token_bytes = []
    for token, what in zip(tokens, kinds, strict=True):
        if what in (CONTROL, USER_DEFINED):
            token_bytes.append(b"" if what == CONTROL else token.encode())
        else:
            token_bytes.append(to_bytes(token))
    for what, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [t for t, k in zip(tokens, kinds, strict=True) if k == what]
        backend.add_tokens([AddedToken(t, special=special, normalized=False) for t in added])
    usual = kind == "llama" or metadata.get("tokenizer.ggml.pre") == "llama-bpe"
    return Tokenizer(
        backend=backend,
        token_bytes=tuple(token_bytes),
        eos_ids=config.eos_ids,
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", usual)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in CUTTERS:
        raise ValueError(
            f"tokenizer.ggml.pre: {name!r} is not supported; supported are {', '.join(CUTTERS)}. "
            "The model's Hugging Face folder, with its tokenizer.json, can be loaded instead"
        )
    pattern, lone_digits = CUTTERS[name]
    merges = [tuple(m.split(" ", 1)) for m in metadata.get("tokenizer.ggml.merges", ())]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=name == "llama-bpe",
        )
    )
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if lone_digits:
        cuts.append(pre_tokenizers.Digits(individual_digits=True))
    if pattern is not None:
        cuts.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    if name == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(metadata: Mapping[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """SentencePiece BPE: the best-scored joinable pair first, bytes for what is unknown."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores = metadata["tokenizer.ggml.scores"]
    ranked = []
    for token, i in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, left, right))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(tokens[left], tokens[right]) for _, _, left, right in sorted(ranked)],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend
