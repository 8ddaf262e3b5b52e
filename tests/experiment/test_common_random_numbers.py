"""Settings of a study see the same requests: a seed names them, and nothing else does."""

from collections import defaultdict
from dataclasses import asdict, replace

import pytest

from cbjax.experiment.workload import build_workload
from tests.experiment.toy import SMALL, toy


def requests_of(config):
    """What is random in a workload: who asks for what, and who arrives when."""
    return [
        (one.class_name, one.prompt, one.prompt_tokens, one.max_tokens, one.seed,
         one.scheduled_arrival_s)
        for one in build_workload(config).requests
    ]


@pytest.mark.parametrize("name", sorted(SMALL))
def test_settings_of_every_experiment_share_requests_and_seed(name, tmp_path):
    cells = toy(name, tmp_path).cells
    alike = defaultdict(list)
    for cell in cells:
        alike[repr(asdict(cell.config.workload))].append(cell.config)
    assert len({cell.config.seed for cell in cells}) == 1
    for first, *others in alike.values():
        assert all(requests_of(first) == requests_of(other) for other in others)


def test_every_setting_sees_the_same_seeds_and_each_seed_other_requests(tmp_path):
    cells = toy("load_curve", tmp_path, "seed=range(2)").cells
    by_seed = defaultdict(set)
    for cell in cells:
        label = cell.label.replace(f"seed={cell.config.seed}", "")
        by_seed[cell.config.seed].add(label)
    assert by_seed[0] == by_seed[1] and len(by_seed[0]) > 2
    one = cells[0].config
    assert requests_of(one) != requests_of(replace(one, seed=one.seed + 1))


def test_loads_stretch_one_pattern_of_arrivals(tmp_path):
    cells = toy("load_curve", tmp_path, "policy=vllm").cells
    slow, fast = (next(
        cell.config for cell in cells if cell.config.workload.arrivals.rate == rate
    ) for rate in (2, 400))
    for before, after in zip(requests_of(slow), requests_of(fast), strict=True):
        assert before[:-1] == after[:-1]
        assert before[-1] * 2 == pytest.approx(after[-1] * 400)
