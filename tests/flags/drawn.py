"""Servers drawn at random: their command lines must say all of them."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from cbjax import policies
from cbjax.flags import FlagsError, Server, Settings

counts = st.integers(1, 100_000)
shares = st.floats(0.01, 0.99, allow_nan=False)
words = st.sampled_from(["auto", "bfloat16", "fp8_e4m3"])
models = st.sampled_from(["org/name", "a folder/model", "./m.gguf"])


@st.composite
def servers(draw, system: str, knobs: dict[str, Any], settings: dict[str, Any], *ignored: str):
    """A server with some knobs and settings drawn from their strategies."""
    def some(strategies: dict[str, Any]) -> dict[str, Any]:
        return draw(st.fixed_dictionaries({}, optional=strategies))

    try:
        return Server(
            system, some(knobs), Settings(**some(settings)),
            tuple(draw(st.lists(st.sampled_from(ignored), unique=True, max_size=3))),
        )
    except FlagsError:
        raise
    except ValueError:
        assume(False)  # the policy refuses these knobs together


def check_round_trip(server: Server) -> None:
    line = policies.to_flags(server)
    again = policies.from_flags(line)
    assert again == server, line
    assert policies.to_flags(again) == line
