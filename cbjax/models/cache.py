"""Converted weights, kept between runs as Orbax checkpoints in the user's cache folder.

An entry is written elsewhere and renamed into place when whole, so a conversion that is killed
leaves nothing that looks complete. Its name is a digest of everything that decides its content.
"""

import hashlib
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from cbjax.cache import cache_dir
from cbjax.models.config import ModelConfig
from cbjax.models.decoder import Weights, weight_shapes

CONVERTER_VERSION = 2  # raise it when `convert` or the layout of the weights changes
ABANDONED_S = 86400.0


def cached_weights(
    config: ModelConfig, source_digest: str, dtype: str, make: Callable[[], Weights]
) -> Weights:
    """Restore the weights of a source, or make and keep them.

    Args:
        config: their configuration.
        source_digest: names the source's content.
        dtype: "float32" or "bfloat16".
        make: converts the source.
    """
    key = f"{config!r} {source_digest} {dtype} {CONVERTER_VERSION}"
    entry = cache_dir() / "weights" / hashlib.sha256(key.encode()).hexdigest()[:32]
    if entry.is_dir():
        try:
            return _restore(entry, weight_shapes(config, dtype))
        except Exception as error:  # whatever a damaged folder makes Orbax raise
            warnings.warn(f"{entry} cannot be read and is made anew ({error})", stacklevel=2)
            shutil.rmtree(entry, ignore_errors=True)
    weights = make()
    try:
        _keep(entry, weights)
    except OSError as error:
        warnings.warn(f"the converted weights are not kept in {entry} ({error})", stacklevel=2)
    return weights


def replace_atomically(target: Path, fill: Callable[[Path], object]) -> None:
    """Fill a fresh path in the folder of `target` and rename it to `target` when whole.

    Of two that do so at once, one wins and the other's work is dropped. What others left behind
    more than a day ago is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob("unfinished-*"):
        if time.time() - left.stat().st_mtime > ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=target.parent) as folder:
        made = Path(folder) / target.name
        fill(made)
        try:
            made.rename(target)
        except OSError:
            if not target.exists():
                raise


def _keep(entry: Path, weights: Weights) -> None:
    arrays = jax.tree.map(np.asarray, weights)

    def fill(path: Path) -> None:
        with _checkpointer() as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(arrays))

    replace_atomically(entry, fill)


def _restore(entry: Path, shapes: Weights) -> Weights:
    wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), shapes)
    with _checkpointer() as checkpointer:
        found = checkpointer.restore(
            entry, args=ocp.args.PyTreeRestore(shapes, restore_args=wanted)
        )

    def check(array: np.ndarray, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if array.shape != shape.shape or array.dtype != shape.dtype:
            raise ValueError(f"{array.dtype}{list(array.shape)} found where {shape} belongs")
        return jnp.asarray(array)

    return jax.tree.map(check, found, shapes)


def _checkpointer() -> ocp.Checkpointer:
    # Random mantissas do not compress; without trying, saving and restoring are several times
    # quicker.
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False, use_zarr3=True))
