"""A cache folder that starts empty, for tests of fetching and converting."""

from pathlib import Path

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CBJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
