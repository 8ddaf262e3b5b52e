"""Writing small GGUF files with the `gguf` package, the way its converters write them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from cbjax.models import families
from cbjax.models.config import ModelConfig
from cbjax.models.hf_dir import hf_tensors, read_json
from cbjax.models.tensors import names_of, part_shapes

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab", *(f"t{i}" for i in range(90))]


def interleaved(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k in the order of neighbouring pairs, as llama.cpp's converter writes them."""
    out = np.empty_like(rows)
    for head in range(len(rows) // head_dim):
        first = head * head_dim
        for pair in range(head_dim // 2):
            out[first + 2 * pair] = rows[first + pair]
            out[first + 2 * pair + 1] = rows[first + head_dim // 2 + pair]
    return out


def write_gguf(
    folder: Path, target: Path, coding: str = "F32", metadata: dict[str, Any] | None = None
) -> ModelConfig:
    """Convert a Hugging Face folder to one GGUF file.

    Args:
        folder: of a model whose family has GGUF files, or of a mistral, written as a llama.
        target: the file to write.
        coding: of the matrices whose rows can be coded so; the rest is F32.
        metadata: string and string-array fields besides the architecture's own.
    """
    raw = read_json(folder, "config.json")
    config, source = families.config_from_hf(raw), hf_tensors(folder)
    written = "llama" if config.family == "mistral" else config.family
    stored, names = names_of(config.family, "hf"), names_of(written, "gguf")
    neighbours = "gguf" in families.get(written).neighbouring_pairs
    writer = gguf.GGUFWriter(target, families.get(written).gguf)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.ffn_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    for key, value in (metadata or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        else:
            writer.add_array(key, value)
    if config.rope_divisors:
        factors = np.asarray(config.rope_divisors, np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    kind = gguf.GGMLQuantizationType[coding]
    row = gguf.GGML_QUANT_SIZES[kind][0]
    for part in part_shapes(config):
        layers = range(config.num_layers) if "{}" in stored[part] else [0]
        for layer in layers:
            values = source.read(stored[part].format(layer)).astype(np.float32)
            if neighbours and part in ("q", "k"):
                values = interleaved(values, config.head_dim)
            name = names[part].format(layer)
            if values.ndim == 2 and values.shape[1] % row == 0 and coding != "F32":
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config
