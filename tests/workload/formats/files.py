"""Files of a few rows in a published form, and the real ones where somebody put them."""

import gzip
from pathlib import Path

import pytest

REAL = Path(__file__).parents[4] / "shared" / "traces"


def write(folder: Path, name: str, text: str) -> Path:
    """A file of this text; a name that ends in .gz is packed."""
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def real(name: str) -> Path:
    """A published file; skips the test where it is not there."""
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{name} is not here: see docs/workloads.md on where to get it")
    return path
