"""An experiment by its name: composed, checked, and spread into the cells of a study."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from hydra.core.override_parser.types import Override

from cbjax.config.cells import CellPlan, keep_own_knobs, plan_cells, sweep_values
from cbjax.config.checks import run_config
from cbjax.config.compose import Compose, composer, hydra_settings, parse
from cbjax.config.errors import ConfigError, nearest
from cbjax.config.paths import config_dir, group_choices
from cbjax.config.schema import RunConfig
from cbjax.config.study import StudyConfig
from cbjax.results import flatten


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        label: unique in the study.
        axes: the cell's place in the grid, override key -> value as text.
        config: all settings.
    """

    label: str
    axes: Mapping[str, str]
    config: RunConfig


@dataclass(frozen=True)
class Experiment:
    """A study that is ready to run: every setting of every cell is resolved and checked.

    Attributes:
        name: of its YAML file; its results are kept under this name.
        description: the first line of that file.
        cells: at least one.
        study: what to show.
        results_dir: where results go.
        force: redo finished runs.
        isolate: a process for every run.
        dry_run: nothing is to be run.
        launcher: settings of the Hydra launcher that is to run the cells; empty: they run here.
        command: what to type to run it again.
        notes: what a user should know who sweeps a knob that not every policy has.
    """

    name: str
    description: str
    cells: tuple[Cell, ...]
    study: StudyConfig
    results_dir: str = "results"
    force: bool = False
    isolate: bool = False
    dry_run: bool = False
    launcher: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    notes: tuple[str, ...] = ()

    @property
    def swept(self) -> list[str]:
        """Dotted settings that differ between the cells on purpose; seeds always may."""
        flat = [flatten(asdict(cell.config)) for cell in self.cells]
        keys = dict.fromkeys(key for settings in flat for key in settings if key != "seed")
        return [key for key in keys if len({repr(cell.get(key)) for cell in flat}) > 1]


def experiments() -> dict[str, str]:
    """All experiments: name -> the first line of its file."""
    return group_choices("experiment")


def load_config(name: str, overrides: Sequence[str] = ()) -> Experiment:
    """Compose an experiment, in a script, a notebook or behind the command line.

    Args:
        name: of a file in `configs/experiment`.
        overrides: `key=value` as on the command line; `key=a,b` sweeps.

    Returns:
        The experiment with all its cells; give it to `cbjax.run_experiment`.

    Raises:
        ConfigError: the text names the field, the value and the remedy.
    """
    known = experiments()
    if name not in known:
        raise ConfigError(f"experiment = {name!r}: {nearest(name, known)}")
    _require_global(name)
    given = parse(overrides)
    if any(override.key_or_group == "experiment" for override in given):
        raise ConfigError(
            f"experiment: {name!r} is chosen already; run one experiment at a time, since the "
            "grids of two do not combine"
        )
    fixed = [_text(override) for override in given if not override.is_sweep_override()]
    chosen = f"+experiment={name}"
    with composer() as compose:
        base = compose([chosen, *fixed])
        launcher, sweeper = hydra_settings([chosen, *fixed])
        seeds = range(base.seed, base.seed + base.repeats)
        plans = plan_cells(_with_grid_of(sweeper, base.study), given, seeds)
        if base.repeats > 1:
            fixed = [_text(one) for one in parse(fixed) if one.key_or_group != "seed"]
        policy_of = cache(lambda texts: str(compose([chosen, *texts]).policy["name"]))
        plans, notes = keep_own_knobs(plans, fixed, policy_of)
        cells = tuple(_cell(plan, compose, chosen) for plan in plans)
    return Experiment(
        name, known[name], cells, base.study, base.results_dir, base.force, base.isolate,
        base.dry_run, launcher, command=_command(chosen, given), notes=tuple(notes),
    )


def _require_global(name: str) -> None:
    """Refuse a file whose settings Hydra would put below `experiment`, where nothing reads them."""
    text = (config_dir() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    if "# @package _global_" not in text.splitlines():
        raise ConfigError(
            f"experiment = {name!r}: begin the file with '# @package _global_', so that its "
            "settings are those of the root"
        )


def _command(chosen: str, given: Sequence[Override]) -> str:
    """Where results go and whether they are redone does not change what is run."""
    told = [_text(one) for one in given if one.key_or_group not in ("results_dir", "force")]
    return shlex.join(["python", "-m", "cbjax.run", chosen, *told])


def _with_grid_of(sweeper: Mapping[str, Any], study: StudyConfig) -> StudyConfig:
    """The study with the grid that its file wrote for Hydra's own sweeper, if it did."""
    axes = {key: sweep_values(parse([f"{key}={value}"])[0]) for key, value in sweeper.items()}
    return replace(study, grid={**axes, **study.grid})


def _cell(plan: CellPlan, compose: Compose, chosen: str) -> Cell:
    try:
        overrides = [*plan.overrides, *plan.place]
        given = {override.key_or_group for override in parse(overrides)}
        config = run_config(compose([chosen, *overrides]), given)
    except ConfigError as error:
        raise ConfigError(f"{error} (in {plan.label})" if plan.label else str(error)) from error
    return Cell(plan.label or config.policy["name"], plan.axes, config)


def _text(override: Override) -> str:
    return str(override.input_line)
