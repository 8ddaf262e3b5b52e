"""What a decoder looks like, as one frozen, hashable record.

A record says which tensors exist and how they are used, never what they hold, so that it can be a
static argument of a compiled program. It is read from checkpoints by `cbjax.models.families`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class UnsupportedModelError(ValueError):
    """The model asks for something that the decoder does not compute."""


@dataclass(frozen=True)
class ModelConfig:
    """One decoder of the Llama kind: RMS norm, rotary positions, grouped queries, SwiGLU.

    Sizes are in the letters of the project: L layers, H query heads, K KV heads, D head size,
    V vocabulary; E is the width of the residual stream and F that of the feed-forward layer.
    """

    family: str
    vocab_size: int  # V, rows of the embedding; may exceed what the tokenizer knows
    hidden_size: int  # E
    num_layers: int  # L
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    ffn_size: int  # F
    max_length: int  # positions the model was made for
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_divisors: tuple[float, ...] = ()  # [D/2] slow-downs of the rotary frequencies; () = none
    qkv_bias: bool = False
    qk_norm: bool = False  # RMS norm of each head of q and k
    tied: bool = True  # the head is the embedding
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_kv_heads", "ffn_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is too small; at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: {self.num_heads} is no multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: {self.head_dim} is odd; rotary positions turn pairs")
        if self.rope_divisors and len(self.rope_divisors) != self.head_dim // 2:
            raise ValueError(
                f"rope_divisors: {len(self.rope_divisors)} given, head_dim={self.head_dim} "
                f"needs {self.head_dim // 2} or none"
            )

    def rotary_frequencies(self) -> np.ndarray:
        """Angle per position of each rotated pair, `[D/2]` float32 radians (RoFormer, 2021)."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = 1 / np.power(np.float32(self.rope_theta), exponents, dtype=np.float32)
        divisors = np.asarray(self.rope_divisors or (1.0,), np.float32)
        return np.asarray(frequencies / divisors, np.float32)

    def with_eos_ids(self, *sources: Sequence[int]) -> "ModelConfig":
        """The same model, ended by any id of any source as well as by its own."""
        ids = sorted({int(i) for source in (self.eos_ids, *sources) for i in source})
        return dataclasses.replace(self, eos_ids=tuple(ids))


def as_ids(value: Any) -> tuple[int, ...]:
    """Token ids from a field that holds none, one or several."""
    if value is None:
        return ()
    return tuple(int(i) for i in value) if isinstance(value, list | tuple) else (int(value),)
