"""What the README shows works: its example policy is really a policy."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cbjax import policies
from cbjax.engine import serve_with_unit_clock
from cbjax.metrics import Recorder
from cbjax.workload import Arrivals, Workload, WorkloadRequest

README = Path(__file__).parents[1] / "README.md"


def example(name: str, contains: str) -> ModuleType:
    """The code of the README that contains something, as a module."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [block for block in blocks if contains in block]
    module = ModuleType(name)
    sys.modules[module.__name__] = module  # jax looks the functions' module up
    exec(compile(code, "README.md", "exec"), module.__dict__)
    return module


def test_a_policy_of_parts_and_its_test():
    module = example("of_parts", "policy = compose(")
    module.test_the_shortest_prompt_is_first()
    module.policy = policies.composed(max_num_seqs=1)
    with pytest.raises(AssertionError):
        module.test_the_shortest_prompt_is_first()


def test_the_example_policy_admits_the_shortest_first():
    requests = tuple(
        WorkloadRequest(number, "", 0, 0.0, None, 2, length, True, number)
        for number, length in enumerate([6, 3, 1, 2])
    )
    recorder = Recorder()
    serve_with_unit_clock(
        example("shortest_first", "def _decide").shortest_first(seats=1),
        Workload(requests, Arrivals(), 0), recorder, num_blocks=32, max_length=16, debug=True,
    )
    ended = recorder.tables().requests.sort("finished_s")
    assert ended["request_id"].to_list() == [2, 3, 1, 0]
    assert ended["finished_s"].to_list() == [1, 3, 6, 12]
