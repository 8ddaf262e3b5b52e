"""What tells one family of decoders from the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]


def as_it_is(raw: Settings) -> Settings:
    """A `config.json` that uses Llama's words."""
    return raw


@dataclass(frozen=True)
class Family:
    """How the checkpoints of a family are read, and which switches of the decoder it sets.

    Attributes:
        switches: fields of `ModelConfig` that all its models share, e.g. `{"qkv_bias": True}`.
        in_llamas_words: its `config.json` as Llama would write it; must leave Llama's own words.
        gguf: `general.architecture` of its GGUF files; None: they have none, or another's.
        tensors: format ("hf", "gguf") -> part -> name, where it differs from Llama's
            (`cbjax/models/tensors.py`); "{}" is the layer.
        neighbouring_pairs: formats whose rows of q and k are ordered for rotating neighbours.
        tiny: source -> its `config.json` beyond common sizes; the models that tests run on.
    """

    switches: Settings = field(default_factory=dict)
    in_llamas_words: Callable[[Settings], Settings] = as_it_is
    gguf: str | None = None
    tensors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    neighbouring_pairs: tuple[str, ...] = ()
    tiny: Mapping[str, Settings] = field(default_factory=dict)


def renamed(raw: Settings, words: Mapping[str, str]) -> Settings:
    """`raw` with the fields that go by another name also under Llama's (theirs -> Llama's)."""
    return {**raw, **{ours: raw[theirs] for theirs, ours in words.items() if theirs in raw}}


def window_if_used(raw: Settings) -> Settings:
    """Without the sliding window that Qwen's files name even where no layer has one."""
    first_windowed = int(raw.get("max_window_layers", 0))
    windowed = raw.get("use_sliding_window", False)
    if windowed and first_windowed < int(raw.get("num_hidden_layers", 0)):
        return raw
    return {**raw, "sliding_window": None}
