"""Families of decoders: one file each, found by its name, which is the `model_type` of its models.

A new family is a new file with a `FAMILY`: nothing is registered. A file whose name starts with `_`
is a part of others. Both readers refuse what the decoder does not compute, naming the field: a
model that loads but reads its weights wrongly writes fluent nonsense.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from cbjax.models.config import ModelConfig, UnsupportedModelError
from cbjax.models.families._family import Family
from cbjax.models.families._gguf import read_gguf
from cbjax.models.families._hf import read_hf

names = sorted(
    module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")
)
_FAMILIES: Mapping[str, Family] = {
    name: importlib.import_module(f"{__name__}.{name}").FAMILY for name in names
}


def get(name: str) -> Family:
    """The family `name`.

    Raises:
        UnsupportedModelError: there is no such family.
    """
    if name not in names:
        raise UnsupportedModelError(
            f"model_type: {name!r} is not supported; supported are {', '.join(names)}"
        )
    return _FAMILIES[name]


def tiny_models() -> dict[str, dict[str, Any]]:
    """Tiny models of all families: source -> what their `config.json` would say of them."""
    return {
        source: {"model_type": name, **settings}
        for name in names for source, settings in get(name).tiny.items()
    }


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """Read the dictionary of a Hugging Face `config.json` (transformers 4 and 5 spellings).

    Raises:
        UnsupportedModelError: unknown architecture, or a setting that the decoder lacks.
        ValueError: a field is missing or impossible.
    """
    name: Any = raw.get("model_type")
    return read_hf(raw, name, get(name))


def config_from_gguf(
    metadata: Mapping[str, Any], *, tied: bool, rope_factors: Sequence[float] = ()
) -> ModelConfig:
    """Read GGUF metadata (key -> Python value).

    Args:
        metadata: the key-value part of the file.
        tied: whether the file has no `output.weight`; GGUF has no field for it.
        rope_factors: the tensor `rope_freqs.weight`, `[D/2]`, if the file has one.

    Raises:
        UnsupportedModelError: unknown architecture, or a setting that the decoder lacks.
        ValueError: a field is missing or impossible.
    """
    known = {get(name).gguf: name for name in names if get(name).gguf is not None}
    architecture = metadata.get("general.architecture")
    if architecture not in known:
        raise UnsupportedModelError(
            f"general.architecture: {architecture!r} is not supported; supported are "
            f"{', '.join(map(str, known))} (Mistral files call themselves llama)"
        )
    name = known[architecture]
    return read_gguf(metadata, name, get(name), tied=tied, rope_factors=rope_factors)
