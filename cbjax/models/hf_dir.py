"""Reading a Hugging Face model folder: configuration files and safetensors, sharded or not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from cbjax.models.config import ModelConfig, as_ids
from cbjax.models.families import config_from_hf
from cbjax.models.tensors import TensorSource

READABLE = ("F32", "F16", "BF16")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the folder; {} if there is none.

    Raises:
        ValueError: the file is not valid JSON.
    """
    path = folder / name
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); is the download complete?") from error


def hf_config(folder: Path) -> ModelConfig:
    """Configuration of the folder, with the ids that end a text from both files that name them.

    Raises:
        ValueError: no `config.json`, or one that cannot be served.
    """
    raw = read_json(folder, "config.json")
    if not raw:
        raise ValueError(f"{folder}: config.json is missing; point to the folder of one model")
    generation = read_json(folder, "generation_config.json")
    return config_from_hf(raw).with_eos_ids(as_ids(generation.get("eos_token_id")))


def weight_files(folder: Path) -> dict[str, Path]:
    """File of every tensor that an index names, or {} -> the single file under the key "".

    Raises:
        ValueError: no weights, or a shard is missing.
    """
    index = read_json(folder, "model.safetensors.index.json").get("weight_map", {})
    if index:
        files = {name: folder / shard for name, shard in index.items()}
        missing = sorted({f.name for f in files.values() if not f.is_file()})
        if missing:
            raise ValueError(
                f"{folder}: {', '.join(missing)} missing, though model.safetensors.index.json "
                "names it; is the download complete?"
            )
        return files
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ValueError(
            f"{folder}: no model.safetensors and no model.safetensors.index.json; "
            "only safetensors (and GGUF files) are read"
        )
    return {"": single}


def hf_tensors(folder: Path) -> TensorSource:
    """The tensors of the folder.

    Raises:
        ValueError: a file is missing or damaged, or a tensor has an unreadable dtype.
    """
    files = weight_files(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    homes: dict[str, Path] = {}
    for path in sorted(set(files.values())):
        for name, shape in _shapes(path).items():
            if files.get(name, path) == path:
                shapes[name], homes[name] = shape, path
    lost = [name for name in files if name and name not in shapes]
    if lost:
        raise ValueError(f"{folder}: the index names {lost[0]}, which {files[lost[0]].name} lacks")
    return TensorSource(str(folder), "hf", shapes, _reader(homes))


def _shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    found = {}
    try:
        with safe_open(path, "np") as file:
            for name in file.keys():
                view = file.get_slice(name)
                if view.get_dtype() not in READABLE:
                    raise ValueError(
                        f"{path}: {name} has dtype {view.get_dtype()}; "
                        f"readable are {', '.join(READABLE)}"
                    )
                found[name] = tuple(view.get_shape())
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or cut short ({error})") from error
    return found


def _reader(homes: Mapping[str, Path]):
    def read(name: str) -> np.ndarray:
        with safe_open(homes[name], "np") as file:
            return file.get_tensor(name)

    return read
