"""Equal settings give equal names, and anything that changes a result changes the name."""

import enum
from pathlib import Path

import numpy as np
import pytest

from cbjax.results import content_digest, identity_hash, plain, source_digest
from cbjax.results.hashing import digest_of


def test_the_hash_ignores_key_order_and_where_results_go():
    first = identity_hash({"a": 1, "b": {"c": [1, 2]}, "results_dir": "x"}, 0)
    second = identity_hash({"b": {"c": (1, 2)}, "a": 1, "force": True}, 0)
    assert first == second
    assert len(first) == 12


def test_config_seed_and_source_all_count():
    base = identity_hash({"a": 1}, 0, "s")
    assert base != identity_hash({"a": 2}, 0, "s")
    assert base != identity_hash({"a": 1}, 1, "s")
    assert base != identity_hash({"a": 1}, 0, "t")
    assert identity_hash({"a": 1.0}, 0) != identity_hash({"a": 1}, 0)


def test_values_become_plain():
    colour = enum.Enum("Colour", {"RED": "red"})
    value = {1: (np.int32(2), np.array([1.5]), Path("a/b"), colour.RED, None, True)}
    assert plain(value) == {"1": [2, [1.5], "a/b", "red", None, True]}
    with pytest.raises(ValueError, match="of type object; use plain numbers"):
        plain({"a": object()})


def test_the_digest_follows_content_and_not_place(tmp_path):
    def tree(name: str, text: str) -> Path:
        root = tmp_path / name / "package"
        (root / "tests").mkdir(parents=True)
        (root / "a.py").write_text(text)
        (root / "c.yaml").write_text("x: 1")
        (root / "notes.md").write_text(name)
        (root / "tests" / "test_a.py").write_text(name)
        return root

    one, same, other = tree("one", "x = 1"), tree("same", "x = 1"), tree("other", "x = 2")
    assert digest_of([one]) == digest_of([same])
    assert digest_of([one]) != digest_of([other])
    with pytest.raises(FileNotFoundError, match="no source files under"):
        digest_of([tmp_path / "nothing"])


def test_the_digest_of_a_file_or_folder_follows_content(tmp_path):
    file, folder = tmp_path / "a.csv", tmp_path / "clients"
    file.write_text("1,2\n")
    folder.mkdir()
    (folder / "one.json").write_text("{}")
    before = content_digest(file), content_digest(folder)
    assert before == (content_digest(file), content_digest(folder))
    file.write_text("1,23\n")
    (folder / "one.json").rename(folder / "two.json")
    after = content_digest(file), content_digest(folder)
    assert all(one != other for one, other in zip(before, after, strict=True))
    copy = tmp_path / "b.csv"
    copy.write_text("1,23\n")
    assert content_digest(copy) == content_digest(file)


def test_the_project_digest_is_of_files():
    assert source_digest().startswith("sha256:")
    assert source_digest() == source_digest()
