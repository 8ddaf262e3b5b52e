"""What docs/adding.md says is done: its files are written into a copy, its commands are run."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
COPIED = ("cbjax", "configs", "pallas_kernels", "tests")
FENCE = re.compile(r"(?:^`([^`\n]+)`:\n\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, tuple[dict[str, str], list[str]]]:
    """Title -> the files to write and the commands to run, of sections that have both."""
    found = {}
    for part in TEXT.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        fences = FENCE.findall(body)
        files = {path: content for path, _, content in fences if path}
        commands = [
            line for path, kind, content in fences if kind == "sh" and not path
            for line in content.splitlines()
        ]
        if files and commands:
            found[title] = (files, commands)
    return found


def test_every_kind_is_shown():
    assert set(sections()) == {
        "A policy", "A workload", "An experiment", "A cost model", "A kernel's back end", "A model",
        "A model family",
    }


def test_each_adds_one_file_that_is_not_there_yet():
    for files, _ in sections().values():
        new = [path for path in files if not path.endswith(".txt")]
        assert len(new) == 1
        assert not (ROOT / new[0]).exists()


@pytest.mark.slow
@pytest.mark.parametrize("title", sections())
def test_its_files_are_enough(title, tmp_path):
    for name in COPIED:
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "golden")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    files, commands = sections()[title]
    for path, content in files.items():
        (tmp_path / path).write_text(content, encoding="utf-8")
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "python"
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
