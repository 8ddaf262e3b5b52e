"""A server as its command line describes it: a policy, settings, and what was set aside."""

from dataclasses import dataclass, field, fields
from typing import Any

from cbjax import policies
from cbjax.core.policy import Policy
from cbjax.policies._flags._memory import Memory
from cbjax.policies._flags._table import Settings, knobs_of, table_of
from cbjax.policies._flags._values import FlagsError


@dataclass(frozen=True)
class Server:
    """What a server's command line says.

    Attributes:
        system: the server, a file of `cbjax/policies/_flags`.
        knobs: all knobs of its policy; those left out are filled with the policy's defaults.
        settings: what is not the policy's; defaults of the system are filled in.
        ignored: flags that say nothing about scheduling, as written; variables come first.
        notes: where the server decides by itself what nobody said; not compared.

    Raises:
        FlagsError: an unknown system or knob.
        ValueError: the policy refuses a value.
    """

    system: str
    knobs: dict[str, Any] = field(default_factory=dict)
    settings: Settings = Settings()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        known = knobs_of(self.system)
        for name in self.knobs:
            if name not in known:
                raise FlagsError(f"{name}: {self.system} has no such knob, only {', '.join(known)}")
        object.__setattr__(self, "knobs", {**known, **self.knobs})
        object.__setattr__(self, "settings", filled(self.system, self.settings))
        in_order = sorted(self.ignored, key=lambda text: text.startswith("-"))
        object.__setattr__(self, "ignored", tuple(in_order))
        self.policy  # noqa: B018  # a value that the policy refuses is refused here

    @property
    def policy(self) -> Policy:
        """The policy, built."""
        return policies.get(table_of(self.system).policy or self.system)(**self.knobs)

    @property
    def seats(self) -> int:
        """Most requests that run at a time."""
        policy = self.policy
        return int(policy.knobs[policy.seats])

    @property
    def block_size(self) -> int:
        """Token positions per KV block; every system has a default."""
        assert self.settings.block_size is not None
        return self.settings.block_size

    @property
    def memory_fraction(self) -> float:
        """The memory flag, for systems with a default for it."""
        assert self.settings.memory_fraction is not None
        return self.settings.memory_fraction

    @property
    def changed(self) -> dict[str, Any]:
        """The knobs that differ from the policy's defaults."""
        known = knobs_of(self.system)
        return {name: value for name, value in self.knobs.items() if value != known[name]}

    def num_blocks(self, memory: Memory | None = None) -> int:
        """Usable KV blocks, by the system's own rule.

        Args:
            memory: the device; needed unless the command line gives the pool directly.

        Raises:
            FlagsError: the command line leaves it to the device and none is given.
            ValueError: the server would not start on this device.
        """
        table = table_of(self.system)
        if self.settings.num_blocks is not None:
            return self.settings.num_blocks
        if memory is not None:
            return table.blocks(self, memory)
        given = table.given(self) if table.given else None
        if given is not None:
            return given
        raise FlagsError(
            f"num_blocks: {self.system} sizes its pool by the device's memory; give a Memory"
        )

    def overrides(self, num_blocks: int | None = None) -> list[str]:
        """What to write behind `python -m cbjax.run +experiment=...`.

        Args:
            num_blocks: the pool; None leaves it to the experiment.

        Returns:
            Overrides; seats and budget are always among them, since experiments set these.
        """
        policy = self.policy
        texts = [f"policy={policy.name}", f"seats={self.seats}"]
        if policy.budget:
            texts.append(f"budget={int(policy.knobs[policy.budget])}")
        else:
            texts.append("budget=null")
        said = {policy.seats, policy.budget}
        texts += [
            f"policy.{name}={_in_yaml(value)}"
            for name, value in self.changed.items() if name not in said
        ]
        if self.settings.block_size is not None:
            texts.append(f"kv.block_size={self.settings.block_size}")
        if num_blocks is not None:
            texts += ["kv.positions=null", "kv.memory_fraction=null", f"kv.num_blocks={num_blocks}"]
        if self.settings.max_length is not None:
            texts.append(f"model.max_length={self.settings.max_length}")
        return texts


def filled(system: str, settings: Settings) -> Settings:
    """Settings with the system's defaults in place of None."""
    defaults = table_of(system).defaults
    return Settings(**{
        item.name: getattr(defaults, item.name) if value is None else value
        for item in fields(Settings) for value in [getattr(settings, item.name)]
    })


def _in_yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
