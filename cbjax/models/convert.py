"""From the tensors of a checkpoint to the decoder's stacked, fused weights.

Each weight is filled in place, one stored tensor at a time, so that a conversion holds little more
than the result.
"""

import jax
import jax.numpy as jnp
import numpy as np

from cbjax.models import families
from cbjax.models.config import ModelConfig
from cbjax.models.decoder import Weights, weight_shapes
from cbjax.models.tensors import FUSED, TensorSource, check_tensors, names_of


def convert(config: ModelConfig, source: TensorSource, dtype: str) -> Weights:
    """Read a checkpoint into weights.

    Args:
        config: what the checkpoint holds.
        source: its tensors.
        dtype: "float32" or "bfloat16", of the matrices.

    Raises:
        ValueError: tensors are missing, too many or of wrong shape.
    """
    check_tensors(config, source)
    shapes = weight_shapes(config, dtype)
    weights: Weights = {}
    for name, shape in shapes.items():
        if name != "layers":
            weights[name] = jnp.asarray(_fill(config, source, name, shape, None))
    weights["layers"] = {}
    for name, shape in shapes["layers"].items():
        weights["layers"][name] = jnp.asarray(
            _fill(config, source, name, shape, range(config.num_layers))
        )
    return weights


def _fill(
    config: ModelConfig,
    source: TensorSource,
    name: str,
    shape: jax.ShapeDtypeStruct,
    layers: range | None,
) -> np.ndarray:
    """One weight, stacked over `layers` if there are any."""
    filled = np.empty(shape.shape, shape.dtype)
    names = names_of(config.family, source.format)
    reordered = source.format in families.get(config.family).neighbouring_pairs
    for layer in layers or [None]:
        place = filled if layer is None else filled[layer]
        start = 0
        for part in FUSED.get(name, (name,)):
            stored = source.read(names[part].format(layer))
            if reordered and part in ("q", "k"):
                stored = half_split(stored, config.head_dim)
            place[start : start + len(stored)] = stored
            start += len(stored)
    return filled


def half_split(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder the output rows of q or k from neighbouring pairs to the half-split layout.

    GGUF files of the Llama architecture store row `2i + j` of a head where Hugging Face has row
    `i + j * D/2`; read unchanged they speak fluently for a few tokens and then no more.

    Args:
        rows: `[heads * D, in]`.
        head_dim: D.
    """
    heads = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return heads.swapaxes(1, 2).reshape(rows.shape)
