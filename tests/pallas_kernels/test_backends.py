"""Choosing a back end: files are names, errors say what is supported and why not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import backends
from pallas_kernels.ragged_paged_attention import ragged_paged_attention, shapes

PACKAGE = "pallas_kernels.ragged_paged_attention"


@pytest.fixture
def extra_back_end(monkeypatch):
    """A back end named "extra" beside the real ones, as a new file would be."""

    class Extra:
        PREFERRED_ON = ("cpu",)
        reason = None

        @classmethod
        def unfit(cls, q, keys, block_tables):
            return cls.reason

        @staticmethod
        def ragged_paged_attention(q, *_, **__):
            return q

    real = backends.load
    monkeypatch.setattr(backends, "names", lambda package: ("extra", "reference", "xla"))
    monkeypatch.setattr(
        backends, "load", lambda package, name: Extra if name == "extra" else real(package, name)
    )
    return Extra


def arguments():
    return shapes.arguments(shapes.Heads(2, 1, 8), [(3, 1)], block_size=4)


def test_names_are_the_files_of_the_folder():
    assert {"reference", "tpu", "triton", "xla"} <= set(backends.names(PACKAGE))


def test_the_platform_decides(monkeypatch):
    """None takes what was written for the platform, and XLA where there is no such thing."""
    for platform, wanted in (("cpu", "xla"), ("tpu", "tpu"), ("gpu", "triton"), ("metal", "xla")):
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        for package, function in (
            (PACKAGE, "ragged_paged_attention"),
            ("pallas_kernels.kv_write", "write_kv"),
            ("pallas_kernels.block_copy", "copy_blocks"),
        ):
            given = shapes.arguments(shapes.Heads(2, 1, 8), [(3, 1)], block_size=4)
            arrays = given["q"], given["keys"], given["block_tables"]
            count = 3 if package == PACKAGE else 2
            chosen = backends.choose(package, function, None, *arrays[:count])
            assert chosen is getattr(backends.load(package, wanted), function)


def test_tables_that_scalar_memory_cannot_hold_are_refused_with_the_remedy():
    given = arguments()
    given |= {"block_tables": jnp.zeros((512, 1024), jnp.int32)}
    given |= {"context_lengths": jnp.zeros(512, jnp.int32)}
    given |= {"query_starts": jnp.zeros(513, jnp.int32)}
    with pytest.raises(ValueError, match=r"tpu: block_tables: \[512, 1024\] .* use larger blocks"):
        ragged_paged_attention(layer=0, implementation="tpu", **given)


def test_preferred_back_end_is_taken_and_an_unfit_one_passed_over(extra_back_end):
    def chosen():
        return backends.choose(PACKAGE, "ragged_paged_attention", None, None, None, None)

    assert chosen() is extra_back_end.ragged_paged_attention
    extra_back_end.reason = "head size 8"
    assert chosen() is backends.load(PACKAGE, "xla").ragged_paged_attention


def test_unfit_choice_is_an_error_with_the_reason(extra_back_end):
    extra_back_end.reason = "head size 8 is not a multiple of 64"
    with pytest.raises(ValueError, match=r"implementation: 'extra' cannot .*multiple of 64"):
        ragged_paged_attention(layer=0, implementation="extra", **arguments())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"implementation": "rocm"}, r"implementation: 'rocm' is unknown; use None or one of"),
        ({"q": jnp.zeros((1, 2, 8), jnp.float16)}, "q: float16.* is not supported"),
        ({"q": jnp.zeros((1, 2, 16))}, "q: head size 16 must equal the cache's head size 8"),
        ({"window": 0}, "window: 0 is not supported; give a positive number or None"),
        ({"scale": jnp.ones(())}, "scale: .* give a Python number"),
        ({"soft_cap": -1.0}, "soft_cap: -1.0 is not supported"),
        ({"keys": jnp.zeros((1, 2, 1, 4, 4))}, "keys, values: .* must be one"),
        ({"context_lengths": jnp.zeros(2, jnp.int32)}, r"context_lengths: .* \[S\] = \[1\]"),
        ({"query_starts": jnp.zeros(1, jnp.int32)}, r"query_starts: .* \[S\+1\] = \[2\]"),
        ({"positions": jnp.zeros(4, jnp.int32)}, r"positions: .* \[T\] = \[1\]"),
        ({"sequences": jnp.zeros(1)}, "sequences: dtype float32 is not supported; use int32"),
        ({"block_tables": jnp.zeros(4, jnp.int32)}, r"block_tables: .* must be \[S, M\]"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(**{**arguments(), "layer": 0, **change})


def test_head_counts_that_do_not_divide_are_refused():
    given = shapes.arguments(shapes.Heads(6, 2, 8), [(3, 1)], block_size=4)
    given["q"] = given["q"][:, :5]
    with pytest.raises(ValueError, match="q: 5 query heads are not a multiple of the cache's 2"):
        ragged_paged_attention(layer=0, **given)


def test_errors_come_at_trace_time():
    given = arguments()
    with pytest.raises(ValueError, match="head size"):
        jax.eval_shape(
            lambda q: ragged_paged_attention(layer=0, **{**given, "q": q}), given["q"][..., :4]
        )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block_tables": np.array([[7]])}, r"block_tables: \[0, 0\] = 7 is outside of the pool"),
        ({"block_tables": np.array([[-1]])}, r"block_tables: \[0, 0\] = -1 is outside"),
        ({"context_lengths": np.array([5])}, r"context_lengths: \[0\] = 5 needs 2 blocks of 4"),
        ({"context_lengths": np.array([0])}, "query_starts: sequence 0 has 1 queries, but"),
    ],
)
def test_debug_looks_at_the_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(**{**arguments(), "layer": 0, **change}, debug=True)
    ragged_paged_attention(**arguments(), layer=0, debug=True)


def test_debug_needs_numbers():
    with pytest.raises(ValueError, match="debug: True .* outside of jax.jit"):
        jax.jit(lambda q, t: ragged_paged_attention(
            layer=0, debug=True, **{**arguments(), "q": q, "block_tables": t}
        ))(arguments()["q"], arguments()["block_tables"])
