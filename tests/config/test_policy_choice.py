"""Policies are configured by their signatures; their files in configs/ only say what is usual."""

import shutil

import pytest
import yaml
from hydra.core.config_store import ConfigStore

import cbjax
from cbjax.config import build_policy, paths
from cbjax.config.policy import knob_for, knobs_of


@pytest.fixture
def own_configs(tmp_path, monkeypatch):
    """A copy of configs/ that a test may change; what Hydra learns from it is forgotten again."""
    configs = tmp_path / "configs"
    shutil.copytree(paths.config_dir(), configs)
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "cbjax")
    yield configs
    ConfigStore.instance().repo.pop("policy", None)


@pytest.mark.parametrize("name", paths.group_choices("policy"))
def test_the_file_of_a_policy_names_its_knobs_with_the_systems_defaults(name):
    written = yaml.safe_load((paths.config_dir() / "policy" / f"{name}.yaml").read_text())
    assert written == {"name": name, **knobs_of(name)}


def test_a_policy_without_a_file_is_chosen_by_its_name(own_configs):
    (own_configs / "policy" / "orca.yaml").unlink()
    [cell] = cbjax.load_config("worked_example", ["policy=orca", "policy.max_bs=2"]).cells
    assert cell.config.policy == {"name": "orca", "max_bs": 2, "reservation": "oracle"}


def test_a_knob_that_no_file_names_can_be_set(own_configs):
    (own_configs / "policy" / "vllm.yaml").write_text("name: vllm\n")
    [cell] = cbjax.load_config("worked_example", ["policy=vllm", "policy.watermark=0.1"]).cells
    assert cell.config.policy["watermark"] == 0.1
    assert cell.config.policy["max_num_seqs"] == 2, "the experiment's seats reach it"


@pytest.mark.parametrize("name", cbjax.policies.names)
def test_seats_and_budget_reach_what_the_system_calls_them(name):
    overrides = [f"policy={name}", "seats=3", "budget=24"]
    [cell] = cbjax.load_config("worked_example", overrides).cells
    policy = build_policy(cell.config.policy)
    assert policy.knobs[knob_for(name, "seats")] == 3
    budget = knob_for(name, "budget")
    if budget is None:
        assert cell.config.iteration_tokens == 24
    else:
        assert policy.knobs[budget] == 24


def test_configs_are_found_in_a_checkout_and_in_a_wheel(tmp_path, monkeypatch):
    package = tmp_path / "cbjax"
    monkeypatch.setattr(paths, "_PACKAGE", package)
    with pytest.raises(FileNotFoundError, match="config.yaml"):
        paths.config_dir()
    for folder in (package / "configs", tmp_path / "configs"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("seed: 0\n")
        assert paths.config_dir() == folder
