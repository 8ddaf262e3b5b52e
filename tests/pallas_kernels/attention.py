"""What the tests of ragged paged attention share: its back ends, and each beside the reference."""

import jax
import numpy as np
import pytest

from pallas_kernels import backends
from pallas_kernels.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.ragged_paged_attention.shapes import Heads

PACKAGE = "pallas_kernels.ragged_paged_attention"
BACK_ENDS = [name for name in backends.names(PACKAGE) if name != "reference"]
SMALL = Heads(4, 2, 16)
TOLERANCE = 2e-6
# Cases that every back end must pass, but of which the quick run leaves the interpreted ones out.
QUICK_ON_XLA = [n if n == "xla" else pytest.param(n, marks=pytest.mark.slow) for n in BACK_ENDS]


def quick(names, chosen):
    """Parameters of which all but a chosen few are slow: each one is a compilation."""
    return [n if n in chosen else pytest.param(n, marks=pytest.mark.slow) for n in names]


def pairs(names, chosen, interpreted):
    """Each back end with names: XLA with all, of which some are quick, the others with a few."""
    return [
        pytest.param(b, n, marks=() if b == "xla" and n in chosen else pytest.mark.slow)
        for b in BACK_ENDS
        for n in names
        if b == "xla" or n in interpreted
    ]


attend = jax.jit(
    ragged_paged_attention,
    static_argnames=("implementation", "scale", "causal", "window", "soft_cap"),
)


def both(implementation, arguments, layer=0, **options):
    """Result of a back end and of the reference, or a skip if the back end says it is unfit."""
    unfit = getattr(backends.load(PACKAGE, implementation), "unfit", lambda *_: None)
    reason = unfit(arguments["q"], arguments["keys"], arguments["block_tables"])
    if reason is not None:
        pytest.skip(reason)
    found = attend(layer=layer, implementation=implementation, **options, **arguments)
    return found, attend(layer=layer, implementation="reference", **options, **arguments)


def check(implementation, arguments, layer=0, tolerance=TOLERANCE, **options):
    found, expected = both(implementation, arguments, layer, **options)
    assert found.dtype == arguments["q"].dtype
    np.testing.assert_allclose(
        np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=tolerance, rtol=0
    )
    padding = arguments["sequences"] == len(arguments["context_lengths"])
    assert not np.any(np.asarray(found, np.float32)[padding])
    return found
