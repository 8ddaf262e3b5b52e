"""How the user's overrides meet an experiment's variants and grid."""

import cbjax


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
