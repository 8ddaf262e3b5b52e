"""How the user's overrides meet an experiment's variants and grid."""

import pytest

import cbjax
from cbjax.config import ConfigError


def labels(name: str, *overrides: str) -> list[str]:
    return [cell.label for cell in cbjax.load_config(name, overrides).cells]


def test_variants_and_grids_are_spread():
    assert labels("worked_example") == ["static", "continuous"]
    grid = labels("budget_block_grid")
    assert len(grid) == 9
    assert grid[0] == "budget=16, block_size=4"


def test_a_sweep_on_the_command_line_multiplies_the_variants():
    assert labels("worked_example", "seats=1,2") == [
        "static, seats=1", "static, seats=2", "continuous, seats=1", "continuous, seats=2"
    ]


def test_a_swept_key_of_the_user_replaces_that_axis_of_the_grid():
    assert labels("budget_block_grid", "budget=8,32", "kv.block_size=16") == [
        "budget=8", "budget=32"
    ]


def test_variants_that_no_longer_differ_become_one():
    assert labels("worked_example", "policy=orca") == ["orca"]
    swept = labels("worked_example", "policy=orca,vllm")
    assert swept == ["policy=orca", "policy=vllm"]


def test_seeds_are_a_sweep_like_any_other_but_not_a_difference():
    experiment = cbjax.load_config("real_prompts", ["workload.path=x.txt", "seed=range(3)"])
    assert [cell.config.seed for cell in experiment.cells] == [0, 1, 2]
    assert experiment.swept == []


def test_swept_settings_are_those_that_differ_under_the_policys_own_names():
    experiment = cbjax.load_config("budget_block_grid")
    assert experiment.swept == ["policy.max_num_batched_tokens", "kv.block_size"]


ONLY_VLLM = "policy.long_prefill_token_threshold"


def test_a_knob_of_one_policy_is_swept_there_and_the_others_run_once():
    experiment = cbjax.load_config(
        "worked_example", ["policy=vllm,sarathi", f"{ONLY_VLLM}=0,16,32", "seats=1,2"]
    )
    assert [cell.label for cell in experiment.cells] == [
        f"policy=vllm, long_prefill_token_threshold={value}, seats={seats}"
        for value in (0, 16, 32) for seats in (1, 2)
    ] + ["policy=sarathi, seats=1", "policy=sarathi, seats=2"]
    assert experiment.notes == (f"sarathi has no {ONLY_VLLM}: it runs without it",)
    vllm, *_, sarathi = experiment.cells
    assert vllm.config.policy["long_prefill_token_threshold"] == 0
    assert "long_prefill_token_threshold" not in sarathi.config.policy
    assert ONLY_VLLM in experiment.swept


def test_a_knob_that_is_fixed_reaches_the_variants_that_have_it():
    """One variant of the experiment is static batching, which knows no budget."""
    experiment = cbjax.load_config("worked_example", ["policy.max_num_batched_tokens=16"])
    static, continuous = experiment.cells
    assert (static.label, continuous.label) == ("static", "continuous")
    assert continuous.config.policy["max_num_batched_tokens"] == 16
    assert experiment.notes == (
        "static has no policy.max_num_batched_tokens: it runs without it",
    )


@pytest.mark.parametrize("policy", ["vllm", "vllm,sarathi"])
def test_a_knob_that_no_policy_of_the_sweep_has_is_refused(policy):
    with pytest.raises(ConfigError, match="policy.max_bs = 2: vllm has no such knob"):
        cbjax.load_config("worked_example", [f"policy={policy}", "policy.max_bs=2,4"])


def test_a_sweep_of_what_every_policy_has_needs_no_note():
    experiment = cbjax.load_config("worked_example", ["policy=vllm,orca", "seats=1,2"])
    assert len(experiment.cells) == 4 and experiment.notes == ()


def test_a_policys_own_name_for_a_setting_counts_more_than_the_experiments_alias():
    """The experiment says seats: 2; what the user writes wins, also under the system's own name."""
    swept = cbjax.load_config("worked_example", ["policy=vllm,orca", "policy.max_num_seqs=5,6"])
    assert {cell.label: cell.config.policy.get("max_num_seqs") for cell in swept.cells} == {
        "policy=vllm, max_num_seqs=5": 5, "policy=vllm, max_num_seqs=6": 6, "policy=orca": None
    }
    assert swept.cells[-1].config.policy["max_bs"] == 2


def test_one_setting_under_two_names_is_refused():
    with pytest.raises(ConfigError, match="seats = 4: policy.max_num_seqs is given, too"):
        cbjax.load_config("worked_example", ["policy=vllm", "seats=4", "policy.max_num_seqs=5"])
    with pytest.raises(ConfigError, match=r"leave one out \(budget=null"):
        cbjax.load_config("token_budget", ["policy=vllm", "policy.max_num_batched_tokens=256,512"])
    experiment = cbjax.load_config(
        "token_budget", ["policy=vllm", "policy.max_num_batched_tokens=256,512", "budget=null"]
    )
    budgets = {cell.config.policy["max_num_batched_tokens"] for cell in experiment.cells}
    assert budgets == {256, 512}
