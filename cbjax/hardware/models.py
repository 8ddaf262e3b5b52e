"""Decoders as records of sizes: how many parameters there are, and what a token's KV takes."""

from dataclasses import dataclass, fields
from typing import Any

from cbjax.hardware.tables import entry, require, table

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float8": 1, "float8_e4m3fn": 1, "int8": 1}


@dataclass(frozen=True)
class ModelShape:
    """A decoder of the Llama kind by its sizes, named as in `cbjax.models.ModelConfig`.

    L layers, H query and K KV heads of size D, V vocabulary, E width of the residual stream, F of
    the feed-forward layer.
    """

    name: str
    vocab_size: int  # V
    hidden_size: int  # E
    num_layers: int  # L
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    ffn_size: int  # F
    max_length: int
    tied: bool = False  # the head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False
    source: str = ""

    @property
    def layer_params(self) -> int:
        """Parameters of one layer's matrices: q, k, v, o, and the three of the feed-forward."""
        heads = self.num_heads * self.head_dim
        kv_heads = self.num_kv_heads * self.head_dim
        return self.hidden_size * (2 * heads + 2 * kv_heads + 3 * self.ffn_size)

    @property
    def head_params(self) -> int:
        """Parameters of the matrix from the residual stream to the logits."""
        return self.vocab_size * self.hidden_size

    @property
    def vector_params(self) -> int:
        """Parameters of all norms and biases."""
        per_layer = 2 * self.hidden_size
        per_layer += (self.num_heads + 2 * self.num_kv_heads) * self.head_dim * self.qkv_bias
        per_layer += 2 * self.head_dim * self.qk_norm
        return self.num_layers * per_layer + self.hidden_size

    @property
    def params(self) -> int:
        """All parameters, a tied embedding counted once."""
        embeddings = self.head_params * (1 if self.tied else 2)
        return embeddings + self.num_layers * self.layer_params + self.vector_params


def names() -> list[str]:
    """Models of the table."""
    return list(table("models"))


def load(name: str) -> ModelShape:
    """The model `name`, e.g. "llama3.1-8b".

    Raises:
        ValueError: it is not in the table; a `ModelShape` of your own, or `shape_of` a loaded
            model's config, is as good.
    """
    return ModelShape(name=name, **entry("models", "model", name))


def shape_of(config: Any, name: str) -> ModelShape:
    """The sizes of any record that has them under these names, such as a `ModelConfig`."""
    sizes = {
        field.name: getattr(config, field.name)
        for field in fields(ModelShape) if field.name not in ("name", "source")
    }
    return ModelShape(name=name, **sizes)


def item_bytes(field: str, dtype: str) -> int:
    """Bytes of one number.

    Raises:
        ValueError: an unknown type, naming `field`.
    """
    require(dtype in ITEM_BYTES, field, dtype, f"use one of {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]
