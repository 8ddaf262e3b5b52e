"""Tiny models with random weights, made in code: any text in, nothing to download.

They say nothing sensible, but they say it like a real model: what follows depends on the whole
prompt, does not settle into one token, and now and then ends by itself.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from cbjax.models import families
from cbjax.models.config import ModelConfig
from cbjax.models.decoder import Weights, weight_shapes
from cbjax.models.token_bytes import byte_to_char
from cbjax.models.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 256, 257, 258
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": 256 + len(SPECIAL),
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 512,
    "eos_token_id": [256, 258],
    "bos_token_id": 256,
}
TINY_SOURCES = tuple(families.tiny_models())


def tiny_settings(name: str) -> dict[str, Any]:
    """What the `config.json` of one of `TINY_SOURCES` would say.

    Raises:
        ValueError: no such model.
    """
    if name not in TINY_SOURCES:
        raise ValueError(f"source: {name!r} is unknown; built in are {', '.join(TINY_SOURCES)}")
    return _COMMON | families.tiny_models()[name]


def tiny_config(name: str) -> ModelConfig:
    """Configuration of one of `TINY_SOURCES`.

    Raises:
        ValueError: no such model.
    """
    return families.config_from_hf(tiny_settings(name))


def tiny_weights(config: ModelConfig, dtype: str = "float32", *, seed: int = 0) -> Weights:
    """Random weights, the same for a configuration and seed on every machine.

    Attention is made sharp and the layers loud against the embedding: with the usual small
    initial weights a model of this size repeats its last token for ever.

    Args:
        config: which tensors to make.
        dtype: "float32" or "bfloat16".
        seed: which of many such models.
    """
    gains = {"head": 3.0, "qkv": 2.0, "output": 4.0, "gate_up": 1.5, "down": 4.0, "qkv_bias": 0.5}
    gains["embedding"] = 0.3 if config.tied else 1.0
    norms = {"q_norm": 2.0, "k_norm": 2.0}

    def draw(path: tuple, shape: jax.ShapeDtypeStruct) -> jax.Array:
        name = path[-1].key
        if name.endswith("norm"):
            return jnp.full(shape.shape, norms.get(name, 1.0), shape.dtype)
        seeds = f"{config.family} {seed} {jax.tree_util.keystr(path)}"
        digest = hashlib.sha256(seeds.encode()).digest()
        values = np.random.default_rng(list(digest[:8])).standard_normal(shape.shape)
        fan_in = 1 if name in ("embedding", "qkv_bias") else shape.shape[-1]
        scale = gains[name] / np.sqrt(fan_in)
        return jnp.asarray(values * scale, jnp.float32).astype(shape.dtype)

    return jax.tree_util.tree_map_with_path(draw, weight_shapes(config, dtype))


def tiny_tokenizer(config: ModelConfig) -> Tokenizer:
    """One token per byte (its id is the byte), and three special ones."""
    spelling = byte_to_char()
    vocabulary = {spelling[byte]: byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    return Tokenizer(
        backend=backend,
        token_bytes=tuple(bytes([byte]) for byte in range(256)) + (b"",) * len(SPECIAL),
        eos_ids=config.eos_ids,
        bos_id=config.bos_id,
        chat_template=CHAT_TEMPLATE,
    )
