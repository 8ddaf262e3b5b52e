"""Stacked or apart: the same numbers, and no second copy of the weights."""

import jax
import numpy as np
import pytest

from cbjax.models import dense_logits, load_model, weight_shapes
from cbjax.models.layout import lay_out, layout_here

IDS = np.arange(40, 70)


def test_a_cpu_keeps_matrices_apart_and_others_stack_them(monkeypatch: pytest.MonkeyPatch) -> None:
    platforms = {"cpu": "apart", "gpu": "stacked", "tpu": "stacked"}
    for platform, layout in platforms.items():
        monkeypatch.setattr("jax.default_backend", lambda platform=platform: platform)
        assert layout_here() == layout


@pytest.mark.parametrize("source", ["tiny", "tiny-qwen2", "tiny-qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_layouts_give_the_same_logits(source: str, dtype: str) -> None:
    stacked, apart = (load_model(source, dtype, layout) for layout in ("stacked", "apart"))
    kinds = jax.tree.map(lambda s: (s.shape, s.dtype), weight_shapes(stacked.config, dtype))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), stacked.weights) == kinds
    assert len(apart.weights["layers"]["qkv"]) == apart.config.num_layers
    found = [np.asarray(dense_logits(m.weights, m.config, IDS)) for m in (stacked, apart)]
    assert np.abs(found[0] - found[1]).max() < 1e-5 * np.abs(found[0]).max()


def test_no_stack_outlives_its_parts() -> None:
    weights = load_model("tiny", layout="stacked").weights
    stack = weights["layers"]["down"]
    apart = lay_out(weights, "apart")
    assert not weights["layers"]
    for part, expected in zip(apart["layers"]["down"], stack, strict=True):
        assert (np.asarray(part) == np.asarray(expected)).all()


def test_an_unknown_layout_is_refused_before_the_weights_are_touched() -> None:
    weights = load_model("tiny", layout="stacked").weights
    with pytest.raises(ValueError, match="striped.*stacked.*apart"):
        lay_out(weights, "striped")
    assert weights["layers"]
