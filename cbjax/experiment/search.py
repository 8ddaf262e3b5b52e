"""The capacity of every cell of a study: its runs are the loads that the search tries."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import polars as pl

from cbjax.capacity import Bracket, Search, Tolerances, Verdict, greatest_load, judge
from cbjax.capacity.search import Probe
from cbjax.config import Cell, ConfigError
from cbjax.config.study import SearchConfig
from cbjax.experiment.runner import Runner
from cbjax.metrics import Slo

RATE = "workload.arrivals.rate"


def search_capacity(cells: Sequence[Cell], wanted: SearchConfig, run: Runner) -> pl.DataFrame:
    """Look for the greatest rate that every cell carries.

    Args:
        cells: each with an SLO and arrivals that have a rate; with `wanted.only_with_slo`, one
            without an SLO runs once.
        wanted: where to begin, how closely to look, with how many seeds.
        run: runs a cell, or finds it finished.

    Returns:
        A row per cell, seed and load tried, and limit: label, policy, seed, `rate`, `limit`,
        `value`, `bound`, `held`; with `low` and `high`, the bracket that the search ended with.

    Raises:
        ConfigError: a cell without bounds or without a rate, or an impossible search.
        Exception: the error of the first cell, if no search came to its end.
    """
    fields = asdict(wanted)
    limits = {name: fields.pop(name) for name in ("growth", "thrash", "lost")}
    seeds, only_with_slo = fields.pop("seeds"), fields.pop("only_with_slo")
    try:
        tolerances, search = Tolerances(**limits), Search(**fields)
    except ValueError as error:
        raise ConfigError(f"study.{error}") from error
    searched = [cell for cell in cells if _has_slo(cell) or not only_with_slo]
    for cell in searched:
        _require_question(cell)
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(cells, start=1):
        place = f"[{number}/{len(cells)}] "
        if cell not in searched:
            run.attempt(cell, partial(run, cell, place))
            continue
        for seed in range(cell.config.seed, cell.config.seed + seeds):
            probe = _probe(cell, seed, seeds > 1, place, tolerances, run)
            found = run.attempt(cell, partial(greatest_load, probe, search))
            if found is None:
                break
            rows += _rows(cell, seed, found)
            run.say(f"{place}{cell.label}: {found.low:.4g} pass, {found.high:.4g} requests/s fail")
    if not rows and run.errors:
        raise next(iter(run.errors.values()))
    return pl.DataFrame(rows)


def _probe(
    cell: Cell, seed: int, several: bool, place: str, tolerances: Tolerances, run: Runner
) -> Probe:
    """One load of a cell, run or found and judged."""
    slo = Slo(**asdict(cell.config.slo))

    def probe(load: float) -> Verdict:
        return judge(run(_at(cell, load, seed, several), place).summary, slo, tolerances)

    return probe


def _rows(cell: Cell, seed: int, found: Bracket) -> list[dict[str, Any]]:
    named = {"label": cell.label, "policy": cell.config.policy["name"], "seed": seed}
    return [
        {**named, "low": found.low, "high": found.high, "rate": load, "limit": limit.name,
         "value": limit.value, "bound": limit.bound, "held": limit.held}
        for load, verdict in found.verdicts.items()
        for limit in verdict.limits
    ]


def _at(cell: Cell, load: float, seed: int, several: bool) -> Cell:
    """The cell under one load."""
    workload = cell.config.workload
    arrivals = replace(workload.arrivals, rate=load)
    config = replace(cell.config, seed=seed, workload=replace(workload, arrivals=arrivals))
    place = f"{cell.label}, rate={load:.6g}" + (f", seed={seed}" if several else "")
    return Cell(place, {**cell.axes, RATE: str(load)}, config)


def _has_slo(cell: Cell) -> bool:
    return bool(Slo(**asdict(cell.config.slo)).targets())


def _require_question(cell: Cell) -> None:
    config = cell.config
    if not _has_slo(cell):
        raise ConfigError(
            f"slo = none (in {cell.label}): a capacity is the greatest load that meets an SLO; "
            "choose one, e.g. slo=interactive or slo.ttft_s=1"
        )
    kind = config.workload.arrivals.kind
    if kind in ("all_at_once", "closed_loop"):
        raise ConfigError(
            f"workload.arrivals.kind = {kind!r} (in {cell.label}) has no rate to look for; use "
            "poisson, gamma, constant or recorded"
        )
