"""Reading a `config.json` of Hugging Face."""

from typing import Any

from cbjax.models.config import ModelConfig, UnsupportedModelError, as_ids
from cbjax.models.families._family import Family, Settings
from cbjax.models.families._rope import refuse_window, rope_divisors


def read_hf(raw: Settings, name: str, family: Family) -> ModelConfig:
    """See `config_from_hf`; `name` is the family's."""
    raw = family.in_llamas_words(raw)
    missing = [k for k in ("vocab_size", "hidden_size", "num_hidden_layers") if k not in raw]
    missing += [k for k in ("num_attention_heads", "intermediate_size") if k not in raw]
    if missing:
        raise ValueError(f"config.json: {', '.join(missing)} missing; is the file complete?")
    heads = int(raw["num_attention_heads"])
    head_dim = int(raw.get("head_dim") or raw["hidden_size"] // heads)
    max_length = int(raw.get("max_position_embeddings") or 2048)
    _refuse_unsupported(raw, max_length, qkv_bias=family.switches.get("qkv_bias", False))
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    fields: dict[str, Any] = dict(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        ffn_size=int(raw["intermediate_size"]),
        max_length=max_length,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_divisors=rope_divisors(rope, theta, head_dim),
        tied=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=as_ids(raw.get("eos_token_id")),
        bos_id=raw.get("bos_token_id"),
    )
    return ModelConfig(family=name, **fields | dict(family.switches))


def _refuse_unsupported(raw: Settings, max_length: int, *, qkv_bias: bool) -> None:
    window = raw.get("sliding_window")
    if window is not None and int(window) < max_length:
        refuse_window("sliding_window", int(window), max_length)
    plain = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0}
    if not qkv_bias:
        plain["attention_bias"] = False
    for name, expected in plain.items():
        if raw.get(name, expected) not in (expected, None):
            raise UnsupportedModelError(
                f"{name}: {raw[name]!r} is not supported; the decoder has {expected!r}"
            )
