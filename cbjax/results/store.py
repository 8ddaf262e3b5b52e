"""Where results live, and the promise that a folder with a final name is finished.

    results/<experiment>/<study hash>/          study.json, comparison.parquet, figures/, runs/
    results/<experiment>/<study hash>/runs/<run hash>/

A study is built in the hidden folder `.<hash>.partial` beside its final place and renamed when it
is complete; inside it every run is built and renamed the same way. A study killed half-way leaves
nothing that looks finished, and its finished runs are found by the next attempt. So are those of
other studies of the experiment: a sweep with one more value has only the new cells to run.

A run that ended with an error leaves a folder too, with `error.json` in place of `summary.json`; it
is tried again the next time.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from cbjax.results.collect import collect_runs
from cbjax.results.hashing import identity_hash, plain, source_digest
from cbjax.results.lock import only_writer
from cbjax.results.runs import (
    SUMMARY,
    Run,
    is_failure,
    is_run,
    read_run,
    read_settings,
    write_failure,
    write_json,
    write_run,
)

STUDY = "study.json"
COMPARISON = "comparison.parquet"


@dataclass
class Study:
    """One study while it is being made, or found finished.

    `path` is its final folder; `folder` is where its files are now, which differs until the study
    is complete. `finished` tells whether the study was found complete: then nothing need be run.
    `order` and `failed` name its runs, finished ones and those that ended with an error; `adopts`
    says whether finished runs of the experiment's other studies are taken over. `about` is told of
    it in its index.
    """

    path: Path
    folder: Path
    experiment: str
    config: Mapping[str, Any]
    seed: int
    swept: tuple[str, ...]
    finished: bool
    order: list[str] = field(default_factory=list)
    views: Mapping[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    adopts: bool = True
    about: Mapping[str, str] = field(default_factory=dict)

    def has_run(self, config: Mapping[str, Any], seed: int) -> bool:
        """Whether a run of these settings is finished, here or in a study it can be taken from."""
        name = identity_hash(config, seed)
        return is_run(self.folder / "runs" / name) or any(self._elsewhere(name))

    def find_run(
        self, config: Mapping[str, Any], seed: int, label: str | None = None
    ) -> Run | None:
        """The finished run of these settings, or None; notes it as part of this study.

        Args:
            config, seed: of the run.
            label: its name in this study; a run taken over from another had one of that study.
        """
        name = identity_hash(config, seed)
        folder = self.folder / "runs" / name
        if not is_run(folder) and not self._adopt(name, label):
            return None
        self._note(name)
        return read_run(folder)

    def find_failure(self, config: Mapping[str, Any], seed: int) -> str | None:
        """The error of these settings' run in one line, or None; notes it as part of the study."""
        name = identity_hash(config, seed)
        folder = self.folder / "runs" / name
        if not is_failure(folder):
            return None
        if name not in self.failed:
            self.failed.append(name)
        return str(read_settings(folder)[2]["error"])

    @contextmanager
    def new_run(self, config: Mapping[str, Any], seed: int) -> Iterator[Path]:
        """A hidden folder to write one run into; it gets its final name on a clean exit.

        An exception, an interrupt included, removes it.
        """
        name = identity_hash(config, seed)
        partial = self.folder / "runs" / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            if is_failure(self.folder / "runs" / name):
                shutil.rmtree(self.folder / "runs" / name)
            partial.rename(self.folder / "runs" / name)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def save_run(self, config: Mapping[str, Any], seed: int, **files: Any) -> Run:
        """Write a whole run at once; `files` are the other arguments of `write_run`."""
        with self.new_run(config, seed) as folder:
            write_run(folder, config=config, seed=seed, **files)
        found = self.find_run(config, seed)
        assert found is not None
        return found

    def save_failure(self, config: Mapping[str, Any], seed: int, **told: Any) -> None:
        """Keep the error of a run; `told` are the other arguments of `write_failure`."""
        with self.new_run(config, seed) as folder:
            write_failure(folder, config=config, seed=seed, **told)

    def runs(self) -> list[Run]:
        """The study's runs in the order they were made or found."""
        return [read_run(self.folder / "runs" / name) for name in self.order]

    def write_index(self) -> None:
        """Write `study.json` and `comparison.parquet` from the runs so far.

        Called on exit; call it earlier to draw figures from the files before the study closes.
        """
        index = {
            "experiment": self.experiment,
            **self.about,
            "study_hash": self.path.name,
            "seed": self.seed,
            "source": source_digest(),
            "swept": list(self.swept),
            "views": plain(self.views),
            "runs": self.order,
            "failed": self.failed,
            "config": plain(self.config),
        }
        write_json(self.folder / STUDY, index)
        if self.order or self.failed:
            # Relative, since the folder is renamed once the study is complete.
            rows = collect_runs(self.folder).with_columns(folder="runs/" + pl.col("run_hash"))
            rows.write_parquet(self.folder / COMPARISON)

    def _note(self, name: str) -> None:
        if name not in self.order:
            self.order.append(name)

    def _elsewhere(self, name: str) -> Iterator[Path]:
        """Folders of the finished run in other studies of the experiment, killed ones included."""
        for folder in _runs_named(name, self.path.parent) if self.adopts else ():
            if folder.parent.parent != self.folder:
                yield folder

    def _adopt(self, name: str, label: str | None) -> bool:
        """Copy a finished run of another study; False where there is none."""
        for folder in self._elsewhere(name):
            partial = self.folder / "runs" / f".{name}.adopted"
            shutil.rmtree(partial, ignore_errors=True)
            try:
                shutil.copytree(folder, partial)
            except (OSError, shutil.Error):  # that study was renamed or replaced just now
                continue
            summary = json.loads((partial / SUMMARY).read_text(encoding="utf-8"))
            write_json(partial / SUMMARY, {**summary, "label": label or summary["label"]})
            shutil.rmtree(self.folder / "runs" / name, ignore_errors=True)
            partial.rename(self.folder / "runs" / name)
            return True
        return False


@contextmanager
def open_study(
    results_dir: str | Path,
    experiment: str,
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    swept: Sequence[str] = (),
    views: Mapping[str, Any] | None = None,
    force: bool = False,
    about: Mapping[str, str] | None = None,
) -> Iterator[Study]:
    """Open the study of these settings: found finished, taken up where a kill left it, or new.

    Args:
        results_dir: the root of all results; made if missing.
        experiment: its name is the folder under the root.
        config: the study's resolved config, plain and nested.
        seed: the study's base seed.
        swept: dotted config keys that differ between its runs on purpose.
        views: figures to draw of it beside the usual ones, name -> options.
        force: redo it even if finished; the old folder stays until the new one is complete.
        about: what is told of it, e.g. its `description` and the `command` that runs it.

    Yields:
        The study. On a clean exit it is indexed and gets its final name; on any exception it keeps
        its hidden name, with those of its runs that are finished, or vanishes if there are none. A
        study with runs that failed is found unfinished, with its other runs to be taken over.

    Raises:
        FolderInUse: the same study is being written by somebody else.
        ValueError: the experiment's name is not a folder name.
    """
    if not experiment or "/" in experiment or experiment.startswith("."):
        raise ValueError(f"experiment={experiment!r} must be a plain name, e.g. quickstart")
    home = Path(results_dir) / experiment
    home.mkdir(parents=True, exist_ok=True)
    name = identity_hash(config, seed)
    path, partial, old = home / name, home / f".{name}.partial", home / f".{name}.old"
    with only_writer(path, home / f".{name}.lock"):
        _recover(path, old)
        index = json.loads((path / STUDY).read_text(encoding="utf-8")) if is_study(path) else {}
        if index and not index.get("failed") and not force:
            yield Study(path, path, experiment, config, seed, tuple(swept), True, index["runs"])
            return
        if force:
            shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(exist_ok=True)
        for folder in partial.glob("runs/*"):
            if is_failure(folder):  # of an attempt that was killed later; it is tried again
                shutil.rmtree(folder)
        study = Study(
            path, partial, experiment, config, seed, tuple(swept), False, views=views or {},
            adopts=not force, about=about or {},
        )
        try:
            yield study
        except BaseException:
            if not any(is_run(folder) for folder in partial.glob("runs/*")):
                shutil.rmtree(partial)
            raise
        study.write_index()
        _drop_unused(study)
        if path.exists():
            path.rename(old)
        partial.rename(path)
        study.folder = path
        shutil.rmtree(old, ignore_errors=True)


def is_finished(
    results_dir: str | Path, experiment: str, config: Mapping[str, Any], seed: int
) -> bool:
    """Whether some study of the experiment holds the finished run of these settings."""
    return any(_runs_named(identity_hash(config, seed), Path(results_dir) / experiment))


def _runs_named(name: str, home: Path) -> Iterator[Path]:
    """Folders of a finished run in the studies of an experiment, unfinished studies included."""
    return (folder for folder in sorted(home.glob(f"*/runs/{name}")) if is_run(folder))


def is_study(folder: Path) -> bool:
    """Whether the folder holds a finished study."""
    return (folder / STUDY).is_file()


def _recover(path: Path, old: Path) -> None:
    # A forced study was killed between its two renames: the old one is still the finished one.
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _drop_unused(study: Study) -> None:
    """Remove what an interrupted attempt left and this one did not ask for."""
    runs = study.folder / "runs"
    for leftover in runs.iterdir() if runs.is_dir() else ():
        if leftover.name not in (*study.order, *study.failed):
            shutil.rmtree(leftover)
