"""`python -m cbjax.run +experiment=<name> [key=value ...]`: the command line.

Alone it lists the experiments. Everything it does is also a plain call: `cbjax.load_config`,
`cbjax.run_experiment`. Heavy imports wait until they are needed, so that help is quick.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from cbjax import hardware
from cbjax.config.errors import ConfigError
from cbjax.config.paths import group_choices, module_names

if TYPE_CHECKING:
    from rich.console import Console

    from cbjax.experiment.backends import Progress

FAILED, WRONG, INTERRUPTED = 1, 2, 130
USAGE = """\
python -m cbjax.run +experiment=NAME [KEY=VALUE ...]

  KEY=VALUE        a setting (seats=4, kv.block_size=8) or a choice of a group (policy=orca)
  KEY=A,B,C        sweeps the setting; the study has a run for every combination
  repeats=N        every run N times, with seeds that follow one another
  dry_run=true     shows the runs, the time and the memory they may take, and starts nothing
  launcher=NAME    runs by other processes or machines: joblib, ray, submitit, slurm
  isolate=true     a process of its own for every run
  force=true       runs again what is finished already
  results_dir=DIR  where results go (default: results)
  --cfg            print the settings of every run instead of running
  --help           this text"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    0; 1 where a cell failed, 2 for a wrong setting, 130 for Ctrl-C.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(help_text())
        return 0
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted: finished runs are kept and found again next time", file=sys.stderr)
        return INTERRUPTED
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG


def help_text() -> str:
    """Usage, experiments and groups, from the files alone."""
    groups = {
        group: sorted({*group_choices(group), *more})
        for group, more in (
            ("policy", module_names("cbjax.policies")), ("model", hardware.models.names()),
            ("hardware", hardware.names()), ("workload", []), ("kv", []), ("ladder", []),
            ("backend", []), ("slo", []), ("launcher", []),
        )
    }
    return "\n".join([
        USAGE, "", "Experiments:", *_lines(group_choices("experiment")), "", "Groups:",
        *_lines({group: ", ".join(names) for group, names in groups.items()}), "",
        "Start with: python -m cbjax.run +experiment=worked_example",
    ])


def read_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment's name and the overrides.

    Raises:
        ConfigError: no experiment, or more than one.
    """
    chosen = [text.lstrip("+") for text in arguments if text.lstrip("+").startswith("experiment=")]
    names = [name for text in chosen for name in text.partition("=")[2].split(",")]
    if len(names) > 1:
        raise ConfigError(
            f"experiment = {','.join(names)}: run one experiment at a time; each has a grid of its "
            "own and the two do not combine"
        )
    if not names:
        raise ConfigError(
            "experiment = null: choose one with +experiment=<name>; "
            f"there are {', '.join(group_choices('experiment'))}"
        )
    overrides = [text for text in arguments if text.lstrip("+") not in chosen]
    # Hydra's flag for sweeps is welcome and changes nothing: commas sweep without it.
    return names[0], [text for text in overrides if text not in ("-m", "--multirun")]


def _run(arguments: list[str]) -> int:
    name, overrides = read_arguments([text for text in arguments if text != "--cfg"])
    from cbjax.config import load_config

    experiment = load_config(name, overrides)
    if "--cfg" in arguments:
        import yaml

        from cbjax.experiment.study import study_settings

        print(yaml.safe_dump(study_settings(experiment), sort_keys=False, allow_unicode=True))
        return 0
    from rich.console import Console

    from cbjax.experiment import estimate_cells, run_experiment
    from cbjax.experiment.cell import CellFailed
    from cbjax.experiment.show import show_estimates, show_study
    from cbjax.results import FolderInUse

    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{experiment.name}: {experiment.description}")
    for note in experiment.notes:
        console.print(f"note: {note}")
    if experiment.dry_run:
        show_estimates(estimate_cells(experiment), console.print)
        return 0
    try:
        with _bars(console) as progress:
            result = run_experiment(experiment, progress=progress, say=console.print)
    except FolderInUse as error:
        raise ConfigError(str(error)) from error
    except CellFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    show_study(result, console.print)
    return FAILED if result.failed else 0


@contextmanager
def _bars(console: "Console") -> Iterator["Progress"]:
    """Bars of the study and of its cell in a terminal; nothing where the output goes to a file."""
    from rich import progress as rich

    from cbjax.experiment.pace import CELLS

    columns = (
        rich.TextColumn("  {task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=console, transient=True) as bars:
        study, cell = bars.add_task("", visible=False), bars.add_task("", visible=False)

        def progress(label: str, done: int, total: int) -> None:
            task = study if label.startswith(CELLS) else cell
            bars.update(task, description=label, completed=done, total=total, visible=done < total)

        yield progress


def _lines(entries: dict[str, str]) -> list[str]:
    width = max(map(len, entries), default=0)
    return [f"  {name:<{width}}  {text}".rstrip() for name, text in entries.items()]


def _leave(status: int) -> NoReturn:
    """Exit; after an interruption without tearing the interpreter down.

    JAX's threads may still be computing then, and freeing what they use crashed now and again.
    """
    if status == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    _leave(main())
