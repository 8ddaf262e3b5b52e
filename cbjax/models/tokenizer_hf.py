"""A tokenizer from the files of a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import tokenizers

from cbjax.models.config import ModelConfig
from cbjax.models.hf_dir import read_json
from cbjax.models.token_bytes import sentence_bytes, spelled_bytes
from cbjax.models.tokenizer import Tokenizer


def hf_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Read `tokenizer.json`, and what belongs to it in `tokenizer_config.json` and `chat_template`.

    Raises:
        ValueError: no `tokenizer.json`, or one whose tokens cannot be turned into bytes.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(
            f"{folder}: tokenizer.json is missing; only this form of tokenizer is read"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for anything it dislikes
        raise ValueError(f"{path}: cannot be read ({error})") from error
    backend.no_padding()
    backend.no_truncation()
    settings = read_json(folder, "tokenizer_config.json")
    bos_id, add_bos = _bos(backend, settings, config)
    eos_id = backend.token_to_id(_token_name(settings.get("eos_token")))
    eos_ids = {*config.eos_ids, *(() if eos_id is None else (eos_id,))}
    return Tokenizer(
        backend=backend,
        token_bytes=_token_bytes(backend, path),
        eos_ids=tuple(sorted(eos_ids)),
        bos_id=bos_id,
        add_bos=add_bos,
        chat_template=_chat_template(folder, settings),
    )


def _token_bytes(backend: tokenizers.Tokenizer, path: Path) -> tuple[bytes, ...]:
    description = json.loads(backend.to_str())
    kinds = _kinds(description.get("decoder"))
    if "ByteLevel" in kinds:
        to_bytes = spelled_bytes
    elif kinds & {"ByteFallback", "Metaspace"}:
        to_bytes = sentence_bytes
    else:
        raise ValueError(
            f"{path}: the decoder {', '.join(sorted(kinds)) or 'none'} is not supported; "
            "byte-level BPE and SentencePiece-like tokenizers are"
        )
    known = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(known.values(), default=-1) + 1)
    added = backend.get_added_tokens_decoder()
    for token, i in known.items():
        if i not in added:
            table[i] = to_bytes(token)
        elif not added[i].special:
            table[i] = token.encode()
    return tuple(table)


def _kinds(description: dict[str, Any] | None) -> set[str]:
    """Names of a decoder and of all that it is made of."""
    if description is None:
        return set()
    parts = (_kinds(part) for part in description.get("decoders", ()))
    return {description["type"]}.union(*parts)


def _bos(
    backend: tokenizers.Tokenizer, settings: dict[str, Any], config: ModelConfig
) -> tuple[int | None, bool]:
    """The id that begins a text, and whether plain text gets it."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    if len(full) > len(bare) and full[: len(bare)] != bare:
        return full[0], True
    named = backend.token_to_id(_token_name(settings.get("bos_token")))
    bos_id = config.bos_id if named is None else named
    return bos_id, bool(settings.get("add_bos_token", False))


def _token_name(value: Any) -> str:
    """Name of a special token, which is written plainly or as a record."""
    return str((value.get("content") if isinstance(value, dict) else value) or "")


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {t["name"]: t["template"] for t in template}.get("default")
    return template
