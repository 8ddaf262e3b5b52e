"""The weights of a GGUF file, as our loader reads them, in the files that other peers read.

Every peer gets the same numbers: the file's, decoded to float32, and rounded to bfloat16 where that
is the precision of the run. Prompts are token ids, so that the Hugging Face folder needs no
tokenizer; the GGUF file keeps that of its source, without which llama.cpp does not start.
"""

import json
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from cbjax.models import families
from cbjax.models.config import ModelConfig
from cbjax.models.convert import half_split
from cbjax.models.gguf_file import open_gguf
from cbjax.models.load import gguf_config, gguf_tensors
from cbjax.models.tensors import TensorSource, names_of, part_shapes

_GGUF_TYPES = {"float32": "F32", "bfloat16": "BF16"}
_NOT_COPIED = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def write_all(source: Path, folder: Path, dtype: str) -> tuple[Path, Path]:
    """Write both forms unless they are there.

    Args:
        source: a GGUF file of a Llama.
        folder: for the results, one below it per dtype.
        dtype: "float32" or "bfloat16", of the matrices.

    Returns:
        The Hugging Face folder and the GGUF file.
    """
    hf, made = folder / f"hf-{dtype}", folder / f"{dtype}.gguf"
    if not (hf / "config.json").is_file():
        write_hf(source, hf, dtype)
    if not made.is_file():
        unfinished = made.with_suffix(".unfinished")
        write_gguf(source, unfinished, dtype)
        unfinished.rename(made)
    return hf, made


def write_hf(source: Path, folder: Path, dtype: str) -> None:
    """A Hugging Face folder: configuration and one safetensors file."""
    file = open_gguf(source)
    config, tensors = gguf_config(file), gguf_tensors(file)
    stored, named = names_of(config.family, "gguf"), names_of(config.family, "hf")
    turned = "gguf" in families.get(config.family).neighbouring_pairs
    written = {}
    for part, layer in _parts(config):
        values = _rounded(tensors, stored[part].format(layer), dtype)
        if turned and part in ("q", "k"):
            values = half_split(values, config.head_dim)
        written[named[part].format(layer)] = np.ascontiguousarray(values)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_hf_settings(config, dtype), indent=1))


def write_gguf(source: Path, target: Path, dtype: str) -> None:
    """A GGUF file with decoded matrices, the metadata and the tokenizer of its source."""
    reader, file = gguf.GGUFReader(source), open_gguf(source)
    tensors, kind = gguf_tensors(file), gguf.GGMLQuantizationType[_GGUF_TYPES[dtype]]
    writer = gguf.GGUFWriter(target, str(file.metadata["general.architecture"]))
    for name, field in reader.fields.items():
        if not name.startswith(_NOT_COPIED):
            element = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if dtype == 'float32' else 'MOSTLY'}_"
                                            f"{_GGUF_TYPES[dtype]}"])
    for name in tensors.shapes:
        values = np.asarray(tensors.read(name), np.float32)
        if values.ndim > 1 and dtype != "float32":
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _parts(config: ModelConfig):
    stored = names_of(config.family, "gguf")
    for part in part_shapes(config):
        for layer in range(config.num_layers if "{}" in stored[part] else 1):
            yield part, layer


def _rounded(tensors: TensorSource, name: str, dtype: str) -> np.ndarray:
    values = np.asarray(tensors.read(name), np.float32)
    narrow = dtype == "bfloat16" and values.ndim > 1  # norms are float32 in ours, too
    return values.astype(ml_dtypes.bfloat16) if narrow else values


def _hf_settings(config: ModelConfig, dtype: str) -> dict:
    if config.family != "llama" or config.rope_divisors or not config.tied:
        raise ValueError(
            f"model: {config.family} cannot be written for the peers; give a GGUF file of a Llama "
            "with a tied head and plain rotary positions, such as smollm2"
        )
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype=dtype,
        vocab_size=config.vocab_size, hidden_size=config.hidden_size,
        intermediate_size=config.ffn_size, num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim, max_position_embeddings=config.max_length,
        rms_norm_eps=config.norm_eps, rope_theta=config.rope_theta, tie_word_embeddings=True,
        hidden_act="silu", bos_token_id=config.bos_id, eos_token_id=list(config.eos_ids),
    )
