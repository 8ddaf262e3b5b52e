"""The typed schema of a study: what is compared, searched or fitted, and what is shown of it."""

from dataclasses import dataclass, field
from typing import Any

from cbjax.config.errors import impossible, require_at_least, require_one_of


@dataclass
class SearchConfig:
    """Search of the greatest load that meets `slo`, for every cell: its runs are the loads tried.

    The load is `workload.arrivals.rate`, requests per second: `start` is doubled or halved between
    `least` and `most`, then bisected to `precision`. Repeated with as many `seeds`. `growth`,
    `thrash` and `lost` are `cbjax.capacity.Tolerances`. With `only_with_slo`, cells without an SLO
    run once as they are, beside the others; otherwise they are refused.
    """

    start: float = 1.0
    least: float = 0.01
    most: float = 10000.0
    precision: float = 0.05
    seeds: int = 1
    growth: float = 0.01
    thrash: float = 0.1
    lost: float = 0.01
    only_with_slo: bool = False

    def __post_init__(self) -> None:
        require_at_least("study.search.seeds", self.seeds, 1)


@dataclass
class FitConfig:
    """Simulation of every cell beside the engine's run, with step times fitted to some of them.

    Attributes:
        loads: rates (`workload.arrivals.rate`) whose runs are fitted; all others are held out.
        starved: share of the KV blocks that a control has, which must fit worse under pressure.
    """

    loads: list[float] = field(default_factory=list)
    starved: float = 0.7

    def __post_init__(self) -> None:
        if not self.loads:
            raise impossible("study.fit.loads", self.loads, "name at least one rate of the grid")
        if not 0 < self.starved < 1:
            raise impossible("study.fit.starved", self.starved, "give a share, 0 < x < 1")


@dataclass
class StudyConfig:
    """What an experiment compares and shows.

    Attributes:
        cells: named variants, each a list of overrides, e.g. `[policy=static, seats=4]`.
        grid: override key -> values; every combination is a cell (of every variant).
        answers: how many answers to print in full.
        timeline: print each run iteration by iteration (small examples only).
        figures: "study" draws the runs beside one another, "all" also each run alone, "none".
        views: further figures of the study, files of `cbjax/report/views`: name -> options.
        search: look for the capacity of every cell instead of running it once.
        fit: simulate every cell beside its run, with step times fitted to some of the runs.
        flags: of how many cells, greatest capacity first, to print the server's command line.
    """

    cells: dict[str, list[str]] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    search: SearchConfig | None = None
    fit: FitConfig | None = None
    flags: int = 0
    answers: int = 0
    timeline: bool = False
    figures: str = "study"

    def __post_init__(self) -> None:
        require_at_least("study.answers", self.answers, 0)
        require_at_least("study.flags", self.flags, 0)
        require_one_of("study.figures", self.figures, ["study", "all", "none"])
