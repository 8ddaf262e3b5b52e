"""Configurations: both spellings are read, and what is not computed is refused with a reason."""

import math

import numpy as np
import pytest

from cbjax.models.config import ModelConfig, UnsupportedModelError
from cbjax.models.families import config_from_gguf, config_from_hf

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "rope_theta": 5000.0,
    "eos_token_id": 7,
}
GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 1024,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5000.0,
    "llama.vocab_size": 128,
    "tokenizer.ggml.eos_token_id": 7,
}


def test_a_hugging_face_config_is_read() -> None:
    config = config_from_hf(LLAMA)
    assert (config.head_dim, config.num_kv_heads, config.ffn_size) == (16, 2, 96)
    assert (config.eos_ids, config.tied, config.rope_theta) == ((7,), False, 5000.0)
    assert hash(config) == hash(config_from_hf(dict(LLAMA)))


def test_gguf_metadata_give_the_same_config() -> None:
    hf = config_from_hf(LLAMA | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5})
    gguf = config_from_gguf(GGUF, tied=True)
    assert gguf.norm_eps == pytest.approx(hf.norm_eps)
    assert ModelConfig(**{**vars(gguf), "norm_eps": hf.norm_eps}) == hf


def test_families_differ_in_bias_and_head_norms() -> None:
    flags = {
        family: (config_from_hf(LLAMA | {"model_type": family}).qkv_bias, family == "qwen3")
        for family in ("llama", "mistral", "qwen2", "qwen3")
    }
    assert [f for f, (bias, _) in flags.items() if bias] == ["qwen2"]
    assert config_from_hf(LLAMA | {"model_type": "qwen3"}).qk_norm


def test_unknown_architectures_are_refused_naming_the_supported() -> None:
    with pytest.raises(UnsupportedModelError, match="gemma3.*llama, mistral, qwen2, qwen3"):
        config_from_hf(LLAMA | {"model_type": "gemma3"})
    with pytest.raises(UnsupportedModelError, match="phi3.*llama, qwen2, qwen3"):
        config_from_gguf(GGUF | {"general.architecture": "phi3"}, tied=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": 512},
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True},
        {
            "model_type": "qwen3",
            "sliding_window": 512,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
    ],
)
def test_a_sliding_window_in_use_is_refused_with_the_reason(changes: dict) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_window: 512.*KV blocks"):
        config_from_hf(LLAMA | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 1024},
        {"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False},
        {
            "model_type": "qwen2",
            "sliding_window": 512,
            "use_sliding_window": True,
            "max_window_layers": 2,
        },
    ],
)
def test_a_sliding_window_that_never_bites_is_no_obstacle(changes: dict) -> None:
    assert config_from_hf(LLAMA | changes).max_length == 1024


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type: 'yarn'"),
    ],
)
def test_settings_that_the_decoder_lacks_are_refused_by_name(changes: dict, field: str) -> None:
    with pytest.raises(UnsupportedModelError, match=field):
        config_from_hf(LLAMA | changes)


def test_gguf_settings_that_the_decoder_lacks_are_refused_by_name() -> None:
    for changes, name in (
        ({"llama.attention.sliding_window": 256}, "sliding_window"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}, "yarn"),
    ):
        with pytest.raises(UnsupportedModelError, match=name):
            config_from_gguf(GGUF | changes, tied=True)


def test_missing_and_impossible_fields_are_named() -> None:
    without = {k: v for k, v in LLAMA.items() if k != "num_hidden_layers"}
    with pytest.raises(ValueError, match="num_hidden_layers"):
        config_from_hf(without)
    with pytest.raises(ValueError, match="num_heads: 4.*num_kv_heads=3"):
        config_from_hf(LLAMA | {"num_key_value_heads": 3})
    with pytest.raises(ValueError, match="llama.block_count"):
        config_from_gguf({k: v for k, v in GGUF.items() if "block_count" not in k}, tied=True)
    with pytest.raises(ValueError, match="low_freq_factor"):
        config_from_hf(LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})


def test_llama31_scaling_keeps_fast_pairs_and_slows_slow_ones() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    old = config_from_hf(LLAMA | {"rope_scaling": scaling})
    new = {**LLAMA, "rope_parameters": scaling | {"rope_theta": 5000.0}}
    del new["rope_theta"]
    assert config_from_hf(new) == old
    plain = config_from_hf(LLAMA).rotary_frequencies()
    ratios = plain / old.rotary_frequencies()
    turns = 256 * plain / (2 * math.pi)
    assert np.allclose(ratios[turns > 4], 1) and np.allclose(ratios[turns < 1], 8)
    between = (turns > 1) & (turns < 4)
    assert between.any() and ((ratios[between] > 1) & (ratios[between] < 8)).all()


def test_rotary_frequencies_are_powers_of_theta() -> None:
    frequencies = config_from_hf(LLAMA).rotary_frequencies()
    assert frequencies.dtype == np.float32
    expected = [5000.0 ** (-2 * i / 16) for i in range(8)]
    assert np.allclose(frequencies, expected, rtol=1e-6)


def test_eos_ids_are_the_union_of_all_sources() -> None:
    """FAULTS F14."""
    config = config_from_hf(LLAMA | {"eos_token_id": [9, 7]}).with_eos_ids((3,), (9,))
    assert config.eos_ids == (3, 7, 9)
    more = {"tokenizer.ggml.eot_token_id": 5}
    assert config_from_gguf(GGUF | more, tied=True).eos_ids == (5, 7)
