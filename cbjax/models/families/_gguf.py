"""Reading the metadata of a GGUF file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cbjax.models.config import ModelConfig, UnsupportedModelError
from cbjax.models.families._family import Family
from cbjax.models.families._rope import refuse_window, rope_divisors


def read_gguf(
    metadata: Mapping[str, Any], name: str, family: Family, *, tied: bool,
    rope_factors: Sequence[float],
) -> ModelConfig:
    """See `config_from_gguf`; `name` is the family's."""

    def field(field_name: str, default: Any = None) -> Any:
        key = f"{family.gguf}.{field_name}"
        value = metadata.get(key, default)
        if value is None:
            raise ValueError(f"GGUF: the field {key} is missing; is the file complete?")
        return value

    heads, hidden = field("attention.head_count"), field("embedding_length")
    head_dim = int(field("attention.key_length", hidden // heads))
    max_length = int(field("context_length"))
    theta = float(field("rope.freq_base", 10000.0))
    _refuse_unsupported(field, head_dim, max_length)
    rope = {"rope_type": field("rope.scaling.type", "none")}
    rope["factor"] = field("rope.scaling.factor", 1.0)
    fields: dict[str, Any] = dict(
        vocab_size=len(metadata.get("tokenizer.ggml.tokens", ())) or int(field("vocab_size")),
        hidden_size=int(hidden),
        num_layers=int(field("block_count")),
        num_heads=int(heads),
        num_kv_heads=int(field("attention.head_count_kv", heads)),
        head_dim=head_dim,
        ffn_size=int(field("feed_forward_length")),
        max_length=max_length,
        norm_eps=float(np.float32(field("attention.layer_norm_rms_epsilon"))),
        rope_theta=theta,
        rope_divisors=tuple(map(float, rope_factors)) or rope_divisors(rope, theta, head_dim),
        tied=tied,
        eos_ids=tuple(sorted(_ids(metadata, "eos", "eot", "eom"))),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )
    return ModelConfig(family=name, **fields | dict(family.switches))


def _ids(metadata: Mapping[str, Any], *names: str) -> set[int]:
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
    return {int(i) for i in found if i is not None}


def _refuse_unsupported(field: Any, head_dim: int, max_length: int) -> None:
    if 0 < int(field("attention.sliding_window", 0)) < max_length:
        refuse_window("attention.sliding_window", field("attention.sliding_window"), max_length)
    if int(field("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModelError(
            f"rope.dimension_count: {field('rope.dimension_count')} is not supported; "
            f"the decoder turns whole heads ({head_dim})"
        )
    if int(field("expert_count", 0)):
        raise UnsupportedModelError(
            f"expert_count: {field('expert_count')}: mixtures of experts are not supported"
        )
