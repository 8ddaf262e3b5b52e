"""Which tensors a checkpoint must hold for a configuration, and what they are called.

Both formats store one matrix `[out, in]` per projection and layer. They differ in names, and GGUF
files of the Llama architecture keep the rows of q and k in the order that rotates neighbouring
pairs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cbjax.models import families
from cbjax.models.config import ModelConfig

# Fields of the decoder that are made of several stored tensors, one after another.
FUSED = {
    "qkv": ("q", "k", "v"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up": ("gate", "up"),
}

_HF_LAYER = "model.layers.{}."
_HF = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": _HF_LAYER + "input_layernorm.weight",
    **{x: f"{_HF_LAYER}self_attn.{x}_proj.weight" for x in "qkv"},
    **{f"{x}_bias": f"{_HF_LAYER}self_attn.{x}_proj.bias" for x in "qkv"},
    **{f"{x}_norm": f"{_HF_LAYER}self_attn.{x}_norm.weight" for x in "qk"},
    "output": _HF_LAYER + "self_attn.o_proj.weight",
    "ffn_norm": _HF_LAYER + "post_attention_layernorm.weight",
    **{x: f"{_HF_LAYER}mlp.{x}_proj.weight" for x in ("gate", "up", "down")},
}
_GGUF_LAYER = "blk.{}."
_GGUF = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    "attention_norm": _GGUF_LAYER + "attn_norm.weight",
    **{x: f"{_GGUF_LAYER}attn_{x}.weight" for x in "qkv"},
    **{f"{x}_bias": f"{_GGUF_LAYER}attn_{x}.bias" for x in "qkv"},
    **{f"{x}_norm": f"{_GGUF_LAYER}attn_{x}_norm.weight" for x in "qk"},
    "output": _GGUF_LAYER + "attn_output.weight",
    "ffn_norm": _GGUF_LAYER + "ffn_norm.weight",
    **{x: f"{_GGUF_LAYER}ffn_{x}.weight" for x in ("gate", "up", "down")},
}
_NAMES = {"hf": _HF, "gguf": _GGUF}
# Derived from the configuration, or read together with it.
_IGNORED = {"hf": ("rotary_emb.inv_freq",), "gguf": ("rope_freqs.weight",)}


@dataclass(frozen=True)
class TensorSource:
    """The tensors of one checkpoint, read one at a time."""

    path: str  # for messages
    format: str  # "hf" or "gguf"
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]  # by stored name; any float dtype


def names_of(family: str, form: str) -> Mapping[str, str]:
    """Part -> what a family's checkpoints of a format call its tensor; "{}" is the layer."""
    return {**_NAMES[form], **families.get(family).tensors.get(form, {})}


def part_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every kind of stored tensor that the configuration needs."""
    width, ffn, head_dim = config.hidden_size, config.ffn_size, config.head_dim
    queries, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab_size, width),
        "final_norm": (width,),
        "attention_norm": (width,),
        "q": (queries, width),
        "k": (kv, width),
        "v": (kv, width),
        "output": (width, queries),
        "ffn_norm": (width,),
        "gate": (ffn, width),
        "up": (ffn, width),
        "down": (width, ffn),
    }
    if not config.tied:
        shapes["head"] = (config.vocab_size, width)
    if config.qkv_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (kv,), "v_bias": (kv,)}
    if config.qk_norm:
        shapes |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
    return shapes


def check_tensors(config: ModelConfig, source: TensorSource) -> None:
    """Refuse a checkpoint that lacks a tensor, has one too many, or one of a wrong shape.

    Raises:
        ValueError: naming the tensors.
    """
    names = names_of(config.family, source.format)
    expected = {
        names[part].format(layer): shape
        for part, shape in part_shapes(config).items()
        for layer in range(config.num_layers if "{}" in names[part] else 1)
    }
    missing = [name for name in expected if name not in source.shapes]
    if names["head"] in missing:
        raise ValueError(
            f"{source.path}: {names['head']} is missing and the head is not tied to the embedding; "
            "the checkpoint is incomplete, or its config lacks tie_word_embeddings: true"
        )
    ignored = (*_IGNORED[source.format], *((names["head"],) if config.tied else ()))
    extra = [n for n in source.shapes if n not in expected and not n.endswith(ignored)]
    for what, found in (("missing", missing), ("not part of this architecture", extra)):
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise ValueError(
                f"{source.path}: {', '.join(found[:5])}{more} {what}; "
                f"the model is read as {config.family} with {config.num_layers} layers"
            )
    for name, shape in expected.items():
        if tuple(source.shapes[name]) != shape:
            raise ValueError(
                f"{source.path}: {name} has shape {list(source.shapes[name])}, "
                f"the configuration says {list(shape)}"
            )
    if config.tied and names["head"] in source.shapes:
        _check_tied(names["head"], names["embedding"], source)


def _check_tied(head: str, embedding: str, source: TensorSource) -> None:
    if source.shapes[head] != source.shapes[embedding] or not np.array_equal(
        source.read(head), source.read(embedding)
    ):
        raise ValueError(
            f"{source.path}: {head} differs from {embedding} although the config ties them; "
            "set tie_word_embeddings: false if the head is meant to be its own"
        )
