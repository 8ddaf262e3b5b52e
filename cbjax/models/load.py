"""Loading a model by the name that a user gives."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from cbjax.models.cache import cached_weights
from cbjax.models.config import ModelConfig
from cbjax.models.convert import convert
from cbjax.models.decoder import Weights, weight_shapes
from cbjax.models.families import config_from_gguf
from cbjax.models.gguf_file import GgufFile, open_gguf
from cbjax.models.hf_dir import hf_config, hf_tensors, weight_files
from cbjax.models.layout import lay_out
from cbjax.models.sources import file_digest, locate
from cbjax.models.tensors import TensorSource
from cbjax.models.tiny import TINY_SOURCES, tiny_config, tiny_tokenizer, tiny_weights
from cbjax.models.tokenizer import Tokenizer
from cbjax.models.tokenizer_gguf import gguf_tokenizer
from cbjax.models.tokenizer_hf import hf_tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve."""

    config: ModelConfig
    weights: Weights = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    source_digest: str  # names the weights: same digest, same numbers before rounding to dtype


def load_model(source: str, dtype: str = "float32", layout: str | None = None) -> LoadedModel:
    """Load a model; the first time its weights are fetched and converted, then kept.

    Args:
        source: "smollm2", "tiny" or "tiny-<family>" (random weights), a Hugging Face model folder,
            a .gguf file, or "hf:<repo>".
        dtype: "float32" or "bfloat16", of the matrices.
        layout: of the layers' matrices, "stacked" or "apart"; None for the quicker one here.

    Raises:
        ValueError: the source cannot be had, read or served; the message says which and why.
    """
    if source in TINY_SOURCES:
        config = tiny_config(source)
        weights = tiny_weights(config, dtype)
        model = LoadedModel(config, weights, tiny_tokenizer(config), source)
    else:
        path = locate(source)
        model = _load_folder(path, dtype) if path.is_dir() else _load_gguf(path, dtype)
    return replace(model, weights=lay_out(model.weights, layout))


def _load_folder(folder: Path, dtype: str) -> LoadedModel:
    config = hf_config(folder)
    weight_shapes(config, dtype)  # refuses a dtype before anything slow
    files = sorted({folder / "config.json", *weight_files(folder).values()})
    digest = hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()
    tokenizer = hf_tokenizer(folder, config)
    weights = cached_weights(
        config, digest, dtype, lambda: convert(config, hf_tensors(folder), dtype)
    )
    return LoadedModel(config.with_eos_ids(tokenizer.eos_ids), weights, tokenizer, digest)


def _load_gguf(path: Path, dtype: str) -> LoadedModel:
    file = open_gguf(path)
    config = gguf_config(file)
    weight_shapes(config, dtype)
    digest = file_digest(path)
    tokenizer = gguf_tokenizer(file.metadata, config)
    weights = cached_weights(
        config, digest, dtype, lambda: convert(config, gguf_tensors(file), dtype)
    )
    return LoadedModel(config, weights, tokenizer, digest)


def gguf_config(file: GgufFile) -> ModelConfig:
    """Configuration of a GGUF file, from its metadata and what its tensors tell.

    Raises:
        ValueError: it cannot be served.
    """
    named = "rope_freqs.weight"
    factors = file.read(named).tolist() if named in file.tensors else ()
    return config_from_gguf(
        file.metadata, tied="output.weight" not in file.tensors, rope_factors=factors
    )


def gguf_tensors(file: GgufFile) -> TensorSource:
    """The tensors of a GGUF file."""
    return TensorSource(
        path=str(file.path),
        format="gguf",
        shapes={name: tensor.shape for name, tensor in file.tensors.items()},
        read=file.read,
    )
