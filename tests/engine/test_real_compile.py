"""The whole model step of Llama 3.1 8B through the real compilers, and that it fits the chip.

Needs the compilers of the extras `tpu` and `cuda`, no chip. One chip, bfloat16 weights and KV.
"""

import os
import subprocess
import sys

import pytest

from pallas_kernels.verify.targets import GIB, TARGETS

HBM = {"v6e": 32 * GIB, "h100": 80 * 10**9}  # vendors' data sheets
BLOCKS = {"v6e": 6000, "h100": 24000}  # of 16 positions, what is left beside the weights


def compile_step(name: str) -> None:
    """Compile one mixed iteration and print its memory; run in a process of its own."""
    import jax
    import jax.numpy as jnp

    from cbjax.core.batch import IterationBatch
    from cbjax.models import forward
    from cbjax.models.decoder import weight_shapes
    from cbjax.models.families import config_from_hf
    from pallas_kernels.verify.compile import options_for
    from pallas_kernels.verify.targets import compiling

    config = config_from_hf({
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "eos_token_id": 128001,
    })
    target, tokens, seats = TARGETS[name], 512, 64
    with compiling(target.device()) as sharding:

        def array(*shape: int, dtype=jnp.int32):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        weights = jax.tree.map(
            lambda x: array(*x.shape, dtype=x.dtype), weight_shapes(config, "bfloat16")
        )
        cache = array(32, BLOCKS[name], 8, 16, 128, dtype=jnp.bfloat16)
        batch = IterationBatch(
            *(array(tokens) for _ in range(5)), array(seats + 1), array(seats),
            array(seats, 512), array(seats), array(seats, dtype=bool), array(seats), array(),
            array(),
        )
        step = jax.jit(
            lambda w, k, v, b: forward(w, config, k, v, b, attention=target.back_end),
            donate_argnums=(1, 2),
        )
        lowered = step.lower(weights, cache, cache, batch)
    memory = lowered.compile(compiler_options=options_for(target.platform)).memory_analysis()
    assert memory.alias_size_in_bytes >= 4 * cache.size, "the cache is not updated in place"
    print(memory.argument_size_in_bytes, memory.temp_size_in_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v6e", "h100"])
def test_llama_8b_compiles_and_fits_one_chip(name):
    target = TARGETS[name]
    if target.missing():
        pytest.skip(target.missing())
    code = f"from tests.engine.test_real_compile import compile_step; compile_step({name!r})"
    environment = target.environment()
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    arguments, temporary = (int(n) for n in done.stdout.split()[-2:])
    assert arguments > 0.75 * HBM[name], "the pool should be what one would serve with"
    assert arguments + temporary < HBM[name]
    assert temporary < arguments / 10
