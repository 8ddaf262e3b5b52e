"""What makes two runs the same run: their settings, their seed and the source that ran them.

Folders are named by this identity and not by the clock, so that a finished run is found again and
two quick starts never overwrite each other.
"""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cbjax import __version__

# Where results go and whether to redo them does not change what they are.
NOT_PART_OF_IDENTITY = ("results_dir", "force")
HASH_LENGTH = 12

_PACKAGE = Path(__file__).resolve().parents[1]


def plain(value: Any) -> Any:
    """The value as JSON knows it: mappings, lists, strings, numbers, booleans and None.

    Raises:
        ValueError: the value is of a kind that no config should hold.
    """
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case np.generic() | np.ndarray():
            return plain(value.tolist())
        case Path():
            return str(value)
    raise ValueError(
        f"a config holds {value!r} of type {type(value).__name__}; use plain numbers, strings, "
        "lists and mappings"
    )


@cache
def source_digest() -> str:
    """A digest of the project's source: its Python files and its configs, by path and content.

    Tests and caches are left out. Where the files cannot be read (a zipped install) the installed
    version stands in.

    Returns:
        "sha256:..." or "version:...".
    """
    roots = [_PACKAGE, _PACKAGE.parent / "pallas_kernels"]
    if (_PACKAGE.parent / "configs" / "config.yaml").is_file():
        roots.append(_PACKAGE.parent / "configs")
    try:
        return digest_of(roots)
    except OSError:
        return f"version:{__version__}"


def digest_of(roots: list[Path]) -> str:
    """The digest of all `.py` and `.yaml` files below `roots`; independent of where they stand.

    Raises:
        FileNotFoundError: there are none.
    """
    digest = hashlib.sha256()
    found = 0
    for root in roots:
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if path.suffix not in (".py", ".yaml") or "tests" in inside.parts:
                continue
            content = path.read_bytes()
            digest.update(f"{root.name}/{inside.as_posix()}:{len(content)}\n".encode())
            digest.update(content)
            found += 1
    if not found:
        raise FileNotFoundError(f"no source files under {', '.join(map(str, roots))}")
    return f"sha256:{digest.hexdigest()}"


def content_digest(path: Path) -> str:
    """A digest of what a file holds, or of every file in a folder; of two alike it is the same.

    A file is read once as long as neither its size nor its time of change differ.
    """
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        facts = file.stat()
        inside = file.relative_to(path).as_posix() if file != path else ""
        digest.update(f"{inside}:{_read(file, facts.st_size, facts.st_mtime_ns)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


@cache
def _read(file: Path, size: int, changed_ns: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def identity_hash(config: Mapping[str, Any], seed: int, source: str | None = None) -> str:
    """The hash that names the folder of a run or of a study.

    Args:
        config: the resolved config as a nested mapping; the order of keys does not matter, and
            `results_dir` and `force` do not count.
        seed: the seed of the run, or the base seed of the study.
        source: a digest; the project's own by default.

    Returns:
        12 hexadecimal digits.
    """
    counted = {key: value for key, value in config.items() if key not in NOT_PART_OF_IDENTITY}
    parts = {"config": plain(counted), "seed": int(seed), "source": source or source_digest()}
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
