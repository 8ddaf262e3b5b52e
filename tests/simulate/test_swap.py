"""What a swap costs in a simulation: the blocks that go to the host and come back."""

import numpy as np
import pytest

from cbjax import policies
from cbjax.core.limits import system
from cbjax.core.sizing import limits_for
from cbjax.simulate import costs, simulate, stream_of_columns
from cbjax.simulate.results import tables

POLICY = policies.vllm_v0(
    max_num_batched_tokens=64, max_num_seqs=4, preemption_mode="swap", watermark=0.0
)
LIMITS = limits_for(POLICY, block_size=4, num_blocks=10, max_length=48, window=4, tables=False)
SYSTEM = system(LIMITS, block_size=4, num_blocks=10, max_length=48, swap_blocks=16)


def test_blocks_are_paid_for_on_both_ways():
    """Two sequences of 5 full blocks each fill the pool; the second leaves and comes back."""
    stream = stream_of_columns(np.zeros(2), np.array([6, 6]), np.array([20, 20]), LIMITS)

    def busy(per_moved_block_s):
        cost = costs.linear(base_s=0.01, per_moved_block_s=per_moved_block_s)
        done = tables(simulate(stream, POLICY, cost, LIMITS, system=SYSTEM))
        assert done.requests["swaps"].to_list() == [0, 1]
        assert done.requests["recomputed_tokens"].sum() == 0
        return done.iterations["duration_s"].to_numpy()

    free, paid = busy(0.0), busy(0.001)
    extra = (paid - free)[paid != free]
    assert extra.tolist() == pytest.approx([0.005, 0.005], abs=1e-6)
