"""From variants, a grid and the user's overrides to the list of cells of a study.

Rules, because two layers of overrides meet: what the user says wins. A setting fixed by the user
leaves the grid, one that the user sweeps replaces its axis, and a variant loses the overrides that
the user made; variants that no longer differ become one. So do cells that differ in a knob which
their policy does not have.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from hydra.core.override_parser.types import Override

from cbjax.config.compose import parse
from cbjax.config.errors import ConfigError
from cbjax.config.policy import knobs_of
from cbjax.config.study import StudyConfig

KNOB = "policy."


@dataclass(frozen=True)
class CellPlan:
    """A cell before it is composed: its variant, its place in the grid, its overrides."""

    variant: str
    axes: Mapping[str, str]
    overrides: tuple[str, ...]

    @property
    def place(self) -> list[str]:
        """The cell's place in the grid as overrides."""
        return [f"{key}={value}" for key, value in self.axes.items()]

    @property
    def label(self) -> str:
        """Names the cell among the others."""
        named = [f"{short_name(key, self.axes)}={value}" for key, value in self.axes.items()]
        return ", ".join([part for part in (self.variant, *named) if part])


def plan_cells(
    study: StudyConfig, given: Sequence[Override], seeds: Sequence[int] = ()
) -> list[CellPlan]:
    """All cells of a study, variants first, then the grid in the order of its keys, then seeds.

    Args:
        study: variants and grid of the experiment's file.
        given: the user's overrides, sweeps (`seats=4,8`, `seed=range(3)`) among them.
        seeds: of the repetitions, if there are several.

    Raises:
        ConfigError: an axis without values, or an override without a value to sweep.
    """
    grid = {key: [as_text(value) for value in values] for key, values in study.grid.items()}
    for override in given:
        if override.is_sweep_override():
            grid[override.key_or_group] = sweep_values(override)
        else:
            grid.pop(override.key_or_group, None)
    if len(seeds) > 1:
        if "seed" in grid:
            raise ConfigError(
                f"repeats = {len(seeds)}: seed is swept already; leave one of the two out"
            )
        grid["seed"] = [as_text(seed) for seed in seeds]
    empty = [key for key, values in grid.items() if not values]
    if empty:
        raise ConfigError(f"study.grid.{empty[0]} = []: give at least one value")
    taken = [*(override.key_or_group for override in given), *grid]
    return [
        CellPlan(variant, dict(zip(grid, values, strict=True)), overrides)
        for variant, overrides in _variants(study, taken).items()
        for values in product(*grid.values())
    ]


def keep_own_knobs(
    plans: Sequence[CellPlan], fixed: Sequence[str],
    policy_of: Callable[[tuple[str, ...]], str],
) -> tuple[list[CellPlan], list[str]]:
    """Take from every cell the knobs that its policy does not have but another cell's has.

    Args:
        plans: all cells.
        fixed: overrides of all cells; they follow the cells' own.
        policy_of: the name of the policy that overrides lead to.

    Returns:
        The cells with all their overrides, those that do not differ any more as one, and what was
        left out, a sentence per knob and policy. A knob that no policy has stays, to be refused.
    """
    whole = [CellPlan(one.variant, one.axes, (*one.overrides, *fixed)) for one in plans]
    keys = {override.key_or_group for override in parse(fixed)}.union(*(one.axes for one in plans))
    knobs = sorted(key for key in keys if key.startswith(KNOB))
    if not knobs:
        return whole, []
    names = [
        policy_of(tuple(_without(knobs, (*one.overrides, *one.place)))) for one in whole
    ]
    known = {name: {KNOB + knob for knob in knobs_of(name)} for name in names}
    shared = set().union(*known.values())
    kept: dict[str, CellPlan] = {}
    notes: dict[str, None] = {}
    for plan, one, name in zip(plans, whole, names, strict=True):
        foreign = [knob for knob in knobs if knob in shared - known[name]]
        notes |= dict.fromkeys(f"{name} has no {knob}: it runs without it" for knob in foreign)
        axes = {key: value for key, value in one.axes.items() if key not in foreign}
        own = CellPlan(one.variant, axes, (*plan.overrides, *_without(foreign, fixed)))
        kept.setdefault(own.label, own)
    return list(kept.values()), list(notes)


def _without(keys: Collection[str], overrides: Sequence[str]) -> list[str]:
    parsed = parse(overrides)
    return [
        text for text, one in zip(overrides, parsed, strict=True) if one.key_or_group not in keys
    ]


def short_name(key: str, among: Collection[str]) -> str:
    """The last part of a dotted key, or all of it where two of them end alike."""
    leaf = key.rpartition(".")[2]
    return leaf if sum(one.rpartition(".")[2] == leaf for one in among) <= 1 else key


def sweep_values(override: Override) -> list[str]:
    """The values of a sweep on the command line, as text."""
    if not override.is_discrete_sweep() or "glob(" in str(override.input_line):
        raise ConfigError(
            f"{override.input_line}: list the values of a sweep, e.g. "
            f"{override.key_or_group}=a,b or {override.key_or_group}=range(3)"
        )
    return [str(value) for value in override.sweep_string_iterator()]


def as_text(value: object) -> str:
    """A value as an override writes it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{','.join(map(as_text, value))}]"
    return str(value)


def _variants(study: StudyConfig, taken: Sequence[str]) -> dict[str, tuple[str, ...]]:
    def is_taken(key: str) -> bool:
        return any(key == name or key.startswith(f"{name}.") for name in taken)

    kept: dict[tuple[str, ...], str] = {}
    for label, overrides in (study.cells or {"": []}).items():
        left = tuple(
            text
            for text, override in zip(overrides, parse(overrides), strict=True)
            if not is_taken(override.key_or_group)
        )
        # A variant that lost overrides is no longer what its name says.
        name = label if len(left) == len(overrides) else ", ".join(left)
        kept.setdefault(left, name)
    return {label: overrides for overrides, label in kept.items()}
