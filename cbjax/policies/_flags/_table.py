"""What a system's file says: its commands, its flags, and how its pool is sized."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from cbjax import policies
from cbjax.policies._flags._memory import Memory
from cbjax.policies._flags._values import FlagsError, as_word

if TYPE_CHECKING:
    from cbjax.policies._flags._server import Server


@dataclass(frozen=True)
class Settings:
    """What a command line says beside the policy; None: not said, and no default of the system.

    Attributes:
        model, dtype, kv_dtype: as written.
        max_length: most tokens of a sequence.
        block_size: token positions per KV block.
        num_blocks: usable KV blocks, if given directly.
        memory_fraction: the system's memory flag; what it is a share of differs, see
            `Server.num_blocks`.
        kv_bytes: bytes of the pool.
        pool_tokens: token positions of the pool.
        swap_bytes: host memory that preempted requests may be swapped to.
    """

    model: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    max_length: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    memory_fraction: float | None = None
    kv_bytes: int | None = None
    pool_tokens: int | None = None
    swap_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "block_size", "num_blocks", "kv_bytes", "pool_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: give a whole number of at least 1")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise ValueError(
                f"memory_fraction = {self.memory_fraction}: give a share, 0 < share <= 1"
            )
        if self.swap_bytes is not None and self.swap_bytes < 0:
            raise ValueError(f"swap_bytes = {self.swap_bytes}: give 0 for none, or more")


@dataclass(frozen=True)
class Flag:
    """A flag that means something here: a knob, a setting, or a reason to refuse.

    Attributes:
        names: its spellings, the first is written; none for an environment variable.
        knob, setting: which one it sets.
        read, write: between word and value.
        const: the value that a switch sets; None: the flag takes a value.
        env: the environment variable that says the same.
        refused: why it cannot be modelled; a value among `unless` changes nothing and is ignored.
        where: a knob and its value; with another value the flag is ignored.
        as_if: if the policy has no such knob, the value it behaves as.
    """

    names: str = ""
    knob: str = ""
    setting: str = ""
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = as_word
    const: Any = None
    env: str = ""
    refused: str = ""
    unless: tuple[str, ...] = ()
    where: tuple[str, Any] | None = None
    as_if: Any = None

    @property
    def target(self) -> str:
        """The knob or setting, for the note about what is not given."""
        return self.knob or self.setting


def on_off(on: str, off: str, knob: str, env: str = "") -> tuple[Flag, Flag]:
    """A pair of switches for one knob, e.g. `--x` and `--no-x`."""
    return Flag(on, knob, const=True, env=env), Flag(off, knob, const=False)


def refuse(reason: str, *names: str, unless: tuple[str, ...] = ()) -> tuple[Flag, ...]:
    """Flags with a value that are refused for one reason."""
    return tuple(Flag(name, refused=reason, unless=unless) for name in names)


def refuse_switch(reason: str, *names: str) -> tuple[Flag, ...]:
    """Switches that are refused for one reason."""
    return tuple(Flag(name, refused=reason, const=True) for name in names)


@dataclass(frozen=True)
class Table:
    """A system's command lines.

    Attributes:
        commands: how they start, the first is written.
        flags: those that mean something here.
        values, switches, lists: flags that say nothing about scheduling, by what follows them: one
            word, none, or several. Names separated by blanks.
        blocks: usable KV blocks of a server on a device.
        given: the same where the line alone says it, else None.
        defaults: the system's defaults of settings.
        config: the flag that names a YAML file of further flags, if there is one.
        model_first: the model stands without a flag.
        when: environment variables that choose this system among those with the same command.
        policy: the policy's name; by default the file's.
        always: what is written on every line; read as written, it is not listed as ignored.
        needs: flags without which there is no scheduler to speak of, and why.
        notes: knob or setting -> what the server does if it is not given, where that differs.
        finish: completes what was given (knobs, settings) as the server does, in place.
        dashes: underscores in flags are read as dashes.
        negatable: every ignored switch `--x` may be `--no-x`.
        env_prefix: environment variables with this prefix must be known.
        env_ignored: those that say nothing about scheduling.
    """

    commands: tuple[str, ...]
    flags: tuple[Flag, ...]
    blocks: Callable[["Server", Memory], int]
    values: str = ""
    switches: str = ""
    lists: str = ""
    given: Callable[["Server"], int | None] | None = None
    defaults: Settings = field(default_factory=Settings)
    config: str = ""
    model_first: bool = False
    when: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""
    always: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    finish: Callable[[dict[str, Any], dict[str, Any]], None] | None = None
    dashes: bool = False
    negatable: bool = False
    env_prefix: str = ""
    env_ignored: str = ""


@cache
def tables() -> dict[str, Table]:
    """The tables of all systems by the names of their files; a new file is all it takes."""
    package = importlib.import_module("cbjax.policies._flags")
    found = [
        module.name for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    ]
    return {
        name: importlib.import_module(f"{package.__name__}.{name}").TABLE for name in sorted(found)
    }


def table_of(system: str) -> Table:
    """The table of a system.

    Raises:
        FlagsError: there is none.
    """
    if system not in tables():
        raise FlagsError(f"system = {system!r}: choose one of {', '.join(tables())}")
    return tables()[system]


def knobs_of(system: str) -> dict[str, Any]:
    """The knobs of a system's policy with their defaults.

    Raises:
        FlagsError: this version has no such policy.
    """
    name = table_of(system).policy or system
    if name not in policies.names:
        raise FlagsError(f"{system}: there is no policy {name!r} in this version")
    parameters = inspect.signature(policies.get(name)).parameters
    return {knob: parameter.default for knob, parameter in parameters.items()}
