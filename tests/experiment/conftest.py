"""What several tests of experiments need."""

import shutil

import pytest
import yaml

from cbjax.config import paths


@pytest.fixture
def own_experiment(tmp_path, monkeypatch):
    """Write an experiment beside the others."""
    configs = tmp_path / "configs"
    shutil.copytree(paths.config_dir(), configs)
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "cbjax")

    def write(name, defaults=(), **settings):
        text = yaml.safe_dump({
            "defaults": [{"override /workload": "abc"}, {"override /backend": "unit_clock"},
                         *defaults],
            "seats": 2, "kv": {"num_blocks": 16}, "model": {"max_length": 32}, "budget": 8,
            **settings,
        }, sort_keys=False)
        (configs / "experiment" / f"{name}.yaml").write_text(
            f"# @package _global_\n# A question.\n{text}"
        )

    return write
