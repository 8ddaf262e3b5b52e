"""What the README shows works: its example policy is really a policy."""

import re
import sys
from pathlib import Path
from types import ModuleType

from cbjax.engine import serve_with_unit_clock
from cbjax.metrics import Recorder
from cbjax.workload import Arrivals, Workload, WorkloadRequest

README = Path(__file__).parents[1] / "README.md"


def example_policy() -> ModuleType:
    """The code of the README's policy as a module."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [block for block in blocks if "def _decide" in block]
    module = ModuleType("shortest_first")
    sys.modules[module.__name__] = module  # jax looks the functions' module up
    exec(compile(code, "README.md", "exec"), module.__dict__)
    return module


def test_the_example_policy_admits_the_shortest_first():
    requests = tuple(
        WorkloadRequest(number, "", 0, 0.0, None, 2, length, True, number)
        for number, length in enumerate([6, 3, 1, 2])
    )
    recorder = Recorder()
    serve_with_unit_clock(
        example_policy().shortest_first(seats=1), Workload(requests, Arrivals(), 0), recorder,
        num_blocks=32, max_length=16, debug=True,
    )
    ended = recorder.tables().requests.sort("finished_s")
    assert ended["request_id"].to_list() == [2, 3, 1, 0]
    assert ended["finished_s"].to_list() == [1, 3, 6, 12]
