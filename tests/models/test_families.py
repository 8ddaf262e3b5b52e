"""Every family in its folder, also one that was added a minute ago: what its file says works.

That a family computes what its authors' code computes is shown by golden files (test_golden.py);
here its tiny models go out under the family's own names and come back.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from cbjax.models import dense_logits, families
from cbjax.models.config import ModelConfig, UnsupportedModelError
from cbjax.models.convert import convert
from cbjax.models.decoder import Weights
from cbjax.models.families._family import renamed
from cbjax.models.gguf_file import open_gguf
from cbjax.models.hf_dir import hf_config, hf_tensors
from cbjax.models.load import gguf_config, gguf_tensors
from cbjax.models.tensors import FUSED, names_of, part_shapes
from cbjax.models.tiny import tiny_config, tiny_settings, tiny_weights
from tests.models.gguf_maker import interleaved, write_gguf

SOURCES = families.tiny_models()


def stored_parts(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, int, np.ndarray]]:
    """The stored tensors that weights are made of: part, layer (0 outside the layers), values."""
    shapes = part_shapes(config)
    for name, stack in {**weights, **weights["layers"]}.items():
        if name == "layers":
            continue
        layers = enumerate(stack) if name in weights["layers"] else [(0, stack)]
        for layer, values in layers:
            start = 0
            for part in FUSED.get(name, (name,)):
                rows = shapes[part][0]
                yield part, layer, np.ascontiguousarray(values[start : start + rows])
                start += rows


def write_hf(folder: Path, source: str) -> Weights:
    """A tiny model as a Hugging Face folder of its family; returns its weights."""
    config = tiny_config(source)
    weights = tiny_weights(config)
    names, tensors = names_of(config.family, "hf"), {}
    for part, layer, values in stored_parts(config, weights):
        if part in ("q", "k") and "hf" in families.get(config.family).neighbouring_pairs:
            values = interleaved(values, config.head_dim)
        tensors[names[part].format(layer)] = values
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(tiny_settings(source)))
    return weights


def logits(config: ModelConfig, weights: Weights) -> np.ndarray:
    return np.asarray(dense_logits(weights, config, jnp.arange(90) % 64))


def test_every_family_has_a_tiny_model_and_a_file_that_says_what_it_is() -> None:
    for name in families.names:
        family = families.get(name)
        assert family.tiny, f"{name}: tests need a tiny model"
        assert {tiny_config(source).family for source in family.tiny} == {name}
        for switch, value in family.switches.items():
            assert {getattr(tiny_config(source), switch) for source in family.tiny} == {value}


@pytest.mark.parametrize("source", SOURCES)
def test_a_folder_in_the_familys_own_names_comes_back(source: str, tmp_path: Path) -> None:
    weights = write_hf(tmp_path, source)
    config = hf_config(tmp_path)
    assert config == tiny_config(source)
    read = convert(config, hf_tensors(tmp_path), "float32")
    np.testing.assert_array_equal(logits(config, read), logits(config, weights))


@pytest.mark.parametrize(
    "source", [one for one in SOURCES if families.get(SOURCES[one]["model_type"]).gguf]
)
def test_a_gguf_file_gives_the_same_model(source: str, tmp_path: Path) -> None:
    weights = write_hf(tmp_path, source)
    write_gguf(tmp_path, tmp_path / "model.gguf")
    file = open_gguf(tmp_path / "model.gguf")
    config = gguf_config(file)
    assert config.family == tiny_config(source).family
    read = convert(config, gguf_tensors(file), "float32")
    np.testing.assert_allclose(
        logits(config, read), logits(tiny_config(source), weights), atol=2e-4
    )


def test_a_config_in_other_words_keeps_its_own() -> None:
    told = {"layers": 2, "hidden_size": 8}
    assert renamed(told, {"layers": "num_hidden_layers", "eps": "rms_norm_eps"}) == {
        **told, "num_hidden_layers": 2,
    }


def test_an_unknown_family_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnsupportedModelError, match="'gemma3'.*" + ", ".join(families.names)):
        families.get("gemma3")
    with pytest.raises(UnsupportedModelError, match="model_type: None"):
        families.config_from_hf({})
