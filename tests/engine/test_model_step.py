"""The compiled model step: the cache is an argument, donated, and never copied."""

import re

import jax
import numpy as np
import pytest

from cbjax import policies
from cbjax.core.inbox import empty_inbox
from cbjax.core.ladder import Rung, ladder
from cbjax.core.limits import system
from cbjax.core.schedule import schedule_jit
from cbjax.core.state import initial_state
from cbjax.engine.model_step import model_executor
from cbjax.engine.sizing import limits_for
from cbjax.engine.step_programs import forward_step
from cbjax.models import load_model
from cbjax.models.layout import LAYOUTS

NUM_BLOCKS = 977  # a number that no other dimension has


def compiled_step(layout, dtype="float32"):
    """The compiled step of one rung, and the shape of its cache."""
    model = load_model("tiny", dtype, layout)
    policy = policies.vllm(max_num_batched_tokens=16, max_num_seqs=4)
    sizes = dict(block_size=4, num_blocks=NUM_BLOCKS, max_length=64)
    limits = limits_for(policy, context=64, **sizes)
    state = initial_state(policy, limits, system(limits, **sizes))
    state, plan = schedule_jit(policy, state, empty_inbox(limits), limits)
    executor = model_executor(
        model, rows=limits.rows, num_blocks=NUM_BLOCKS, block_size=4, dtype="float32",
        attention=None,
    )
    compiled = forward_step.lower(
        model.weights, executor.keys, executor.values, state, plan, config=model.config,
        rung=Rung(16, 4), attention=None,
    ).compile()
    return compiled, executor.keys.shape


@pytest.fixture(scope="module", params=LAYOUTS)
def lowered(request):
    return compiled_step(request.param)


def test_the_cache_is_updated_in_place(lowered):
    compiled, shape = lowered
    text = compiled.as_text()
    cache = r"f32\[" + ",".join(map(str, shape)) + r"\]"
    assert re.search(cache, text), "the cache must appear under its own shape"
    copies = re.findall(rf"= {cache}\S* copy\(", text)
    assert not copies
    assert text.count("may-alias") + text.count("must-alias") >= 2


def test_temporary_memory_does_not_hold_a_second_cache(lowered):
    compiled, shape = lowered
    assert compiled.memory_analysis().temp_size_in_bytes < int(np.prod(shape)) * 4


def test_weights_are_arguments(lowered):
    compiled, _ = lowered
    constants = re.findall(r"f32\[([\d,]+)\][^=\n]* constant\(", compiled.as_text())
    sizes = [int(np.prod([int(n) for n in dims.split(",")])) for dims in constants]
    assert max(sizes, default=0) < 64 * 64, "a matrix of weights was closed over"


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_matrices_that_lie_apart_are_never_copied(dtype, kind):
    """The gain of that layout: no operation yields a matrix of the layers, or a wider one."""
    text = compiled_step("apart", dtype)[0].as_text()
    for name, matrices in load_model("tiny", dtype, "apart").weights["layers"].items():
        if isinstance(matrices, tuple):
            shape = ",".join(map(str, matrices[0].shape))
            made = re.findall(rf"= (\w+)\[(?:1,)?{shape}\]\S* ([\w-]+)\(", text)
            passed = {(kind, "parameter"), (kind, "get-tuple-element")}
            assert made and set(made) <= passed, (name, set(made))


def test_programs_are_a_sum_over_axes():
    assert len(ladder(256, 32).rungs) <= 6 + 4
    assert jax.tree.leaves(ladder(8, 2).rungs[-1]) == [Rung(8, 2)]
