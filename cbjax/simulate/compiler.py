"""How the loop is compiled on a CPU: as one kernel instead of some three hundred small ones.

XLA on the CPU starts every operation of a program by itself, which takes 0.1 µs: longer than most
operations on a few hundred rows. It compiles a loop into a single kernel if the loop touches little
memory and has no scatter in it. Two settings lift both conditions: scatters become loops (asked for
per program), and the bound on the memory goes (which can only be asked for in XLA_FLAGS, before JAX
first compiles anything). Results are the same without them, at two to three times the time.
"""

import os
from functools import cache
from typing import Any

import jax

_WANTED: dict[str, Any] = {
    "xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1
}
_SETTING = "xla_cpu_small_while_loop_byte_threshold"
_FLAG = "--xla_backend_extra_options"


def ask_for_one_kernel() -> bool:
    """Put the bound into XLA_FLAGS, unless options of that kind are there already.

    Loops that multiply matrices, such as those of a model, are left alone by XLA.

    Returns:
        Whether XLA_FLAGS holds it now; it has no effect if JAX has compiled before.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={_SETTING}={10**12}".strip()
    return _SETTING in os.environ["XLA_FLAGS"]


@cache
def options() -> dict[str, Any] | None:
    """The settings asked for per program, as far as this jax knows them; None off the CPU."""
    if jax.default_backend() != "cpu":
        return None

    def knows(name: str, value: Any) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError:  # jax 0.12 has no fusion emitters to do without
            return False
        return True

    return {name: value for name, value in _WANTED.items() if knows(name, value)}
