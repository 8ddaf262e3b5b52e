"""The notebooks run from top to bottom as they are, and what is committed of them is clean."""

import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 300_000
# A place on somebody's machine: of a user, of a temporary file, of an installed package.
PLACES = re.compile(r"(/home/|/root/|/tmp/|/Users/|/work/|site-packages|[A-Z]:\\\\)")


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def outputs_of(cells) -> str:
    """All text of the outputs; pictures are left out, whose bytes may say anything."""
    told = []
    for cell in cells:
        for output in cell.get("outputs", ()):
            data = {kind: text for kind, text in output.get("data", {}).items()
                    if not kind.startswith("image/")}
            told.append(json.dumps([output.get("text"), output.get("traceback"), data]))
    return "\n".join(told)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_small_and_whole(path):
    cells = cells_of(path)
    assert path.stat().st_size < MOST_BYTES
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "run it from top to bottom and save it"
    for cell in code:
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr", output["text"]
            assert output.get("data", {"text/plain": "text"}).get("text/plain") != "", "empty"
    place = PLACES.search(outputs_of(cells))
    assert place is None, f"a path of the machine that ran it: {place}"


def test_a_place_on_a_machine_is_found():
    cell = {"outputs": [{"output_type": "stream", "text": ["in /home/someone/file.py\n"]}]}
    assert PLACES.search(outputs_of([cell]))
    assert not PLACES.search(outputs_of([{"outputs": [{"text": ["2.1 tokens/s\n"]}]}]))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra notebooks or test")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebooks or test")
    pytest.importorskip("ipykernel", reason="needs the extra notebooks or test")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[1]))
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()  # raises with the cell and its error
    place = PLACES.search(outputs_of(notebook.cells))
    assert place is None, f"{path.name} shows a path of this machine: {place}"
    left = [file.name for file in FOLDER.iterdir() if file.suffix not in (".ipynb", ".py")]
    assert set(left) <= {"__pycache__", ".ipynb_checkpoints"}, f"{path.name} left {left} behind"
