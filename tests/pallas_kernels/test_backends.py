"""Choosing a back end: files are names, errors say what is supported and why not."""

import jax
import jax.numpy as jnp
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
        def unfit(cls, q, keys):
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
    assert backends.names(PACKAGE) == ("reference", "xla")


def test_preferred_back_end_is_taken_and_an_unfit_one_passed_over(extra_back_end):
    def chosen():
        return backends.choose(PACKAGE, "ragged_paged_attention", None, None, None)

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
