"""The typed schema of every setting. YAML holds values only; what is allowed stands here.

Plain dataclasses that know nothing of Hydra: `RunConfig(...)` is as good as a composed one. Checks
that the library makes itself (a policy's knobs, arrivals, lengths) are left to it, see
`cbjax.config.checks`.
"""

from dataclasses import dataclass, field
from typing import Any

from cbjax.config.errors import impossible, require_at_least, require_one_of
from cbjax.config.study import StudyConfig
from cbjax.metrics import LEVELS


@dataclass
class KvConfig:
    """The KV cache, sized in one of three ways.

    `num_blocks` blocks; or room for `positions` token positions, whatever the block size; or
    `memory_fraction` of the free memory, which the engine measures, or of an accelerator's, which
    the weights take their part of first. `swap_blocks` more lie on the host, for policies that move
    a victim's KV there instead of computing it again. `dtype` null is that of the model; "int8" and
    "float8_e4m3fn" have a scale per token and head.
    """

    block_size: int = 16
    dtype: str | None = None
    num_blocks: int | None = None
    positions: int | None = None
    memory_fraction: float | None = None
    swap_blocks: int = 0

    def __post_init__(self) -> None:
        for name, least in (("block_size", 1), ("num_blocks", 1), ("positions", self.block_size)):
            require_at_least(f"kv.{name}", getattr(self, name), least)
        require_at_least("kv.swap_blocks", self.swap_blocks, 0)
        if self.dtype is not None:
            require_one_of(
                "kv.dtype", self.dtype, ["float32", "bfloat16", "int8", "float8_e4m3fn"]
            )
        share = self.memory_fraction
        if share is not None and not 0 < share < 1:
            raise impossible("kv.memory_fraction", share, "give a share of free memory, 0 < x < 1")
        sizes = {name: getattr(self, name) for name in ("num_blocks", "positions")}
        sizes["memory_fraction"] = share
        given = [name for name, size in sizes.items() if size is not None]
        if len(given) > 1:
            raise impossible(
                f"kv.{given[1]}", sizes[given[1]], f"kv.{given[0]} = {sizes[given[0]]} sizes the "
                "pool already; set one of the two to null"
            )

    @property
    def blocks(self) -> int | None:
        """Blocks of the pool; None where free memory decides."""
        return self.positions // self.block_size if self.positions else self.num_blocks


@dataclass
class LadderConfig:
    """Sizes of the padded shapes; None doubles up to the greatest batch.

    The greatest schedulable batch is always the last rung; sizes beyond it are left out.
    `tuned` takes what `python -m cbjax.tune` chose for the model and this machine instead.
    """

    decode: list[int] | None = None
    mixed: list[int] | None = None
    tuned: bool = False

    def __post_init__(self) -> None:
        if self.tuned and (self.decode is not None or self.mixed is not None):
            raise impossible(
                "ladder.tuned", True, "leave ladder.decode and ladder.mixed out: they were measured"
            )


@dataclass
class ModelConfig:
    """Which model: "smollm2", "tiny", a folder, a .gguf file or "hf:<repo>"."""

    source: str = "smollm2"
    dtype: str = "float32"
    max_length: int | None = None
    attention: str | None = None

    def __post_init__(self) -> None:
        require_at_least("model.max_length", self.max_length, 2)
        require_one_of("model.dtype", self.dtype, ["float32", "bfloat16"])


@dataclass
class HardwareConfig:
    """The accelerator that a simulation stands for, a name of `cbjax.hardware`, and how many."""

    name: str | None = None
    devices: int = 1

    def __post_init__(self) -> None:
        require_at_least("hardware.devices", self.devices, 1)


@dataclass
class LengthsConfig:
    """A distribution of lengths in tokens, as `cbjax.workload.Lengths`."""

    kind: str = "fixed"
    value: int | None = None
    low: int | None = None
    high: int | None = None
    median: float | None = None
    sigma: float | None = None


@dataclass
class ArrivalsConfig:
    """How requests arrive, as `cbjax.workload.Arrivals`; rate in requests per second."""

    kind: str = "all_at_once"
    rate: float | None = None
    burstiness: float | None = None
    concurrency: int | None = None


@dataclass
class ClassConfig:
    """A kind of synthetic request."""

    share: float = 1.0
    prompt_lengths: LengthsConfig = field(default_factory=LengthsConfig)
    output_lengths: LengthsConfig = field(default_factory=LengthsConfig)
    priority: int = 0


@dataclass
class RequestConfig:
    """One request written out, for examples small enough to check by hand."""

    prompt_tokens: int = 1
    output_tokens: int = 1
    arrival_s: float = 0.0
    priority: int = 0


@dataclass
class TraceConfig:
    """How a recorded trace is read and shaped, in this order; see `cbjax.workload`.

    `format` is a file of `cbjax/workload/formats`, `options` are its own. `on_bad_row` refuses or
    skips rows that hold no request; `limit` bounds the rows looked at. `spread_ticks` undoes a
    coarse clock; `start_s` and `duration_s` cut a window; lengths are scaled, then cut. The rate is
    that of `workload.arrivals`.
    """

    format: str = "table"
    options: dict[str, Any] = field(default_factory=dict)
    on_bad_row: str = "refuse"
    limit: int | None = None
    spread_ticks: bool = False
    start_s: float = 0.0
    duration_s: float | None = None
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        require_one_of("workload.trace.on_bad_row", self.on_bad_row, ["refuse", "skip"])
        for name in ("limit", "max_prompt_tokens", "max_output_tokens"):
            require_at_least(f"workload.trace.{name}", getattr(self, name), 1)
        for name in ("start_s", "duration_s", "prompt_scale", "output_scale"):
            require_at_least(f"workload.trace.{name}", getattr(self, name), 0)


@dataclass
class SessionsConfig:
    """Conversations of several turns, as `cbjax.workload.Sessions`, and how many of them."""

    count: int = 16
    turns: LengthsConfig = field(default_factory=LengthsConfig)
    message_lengths: LengthsConfig = field(default_factory=LengthsConfig)
    answer_lengths: LengthsConfig = field(default_factory=LengthsConfig)
    think_median_s: float = 10.0
    think_sigma: float = 1.0
    token_s: float | None = None
    system_tokens: int = 0
    longest: int | None = None

    def __post_init__(self) -> None:
        require_at_least("workload.sessions.count", self.count, 1)


SOURCES = ("builtin", "file", "synthetic", "listed", "trace", "sessions")


@dataclass
class WorkloadConfig:
    """Which requests, from one of six sources.

    `builtin` prompts (of a `language`), a `file` of prompts (text or JSONL at `path`), `synthetic`
    ones of `classes`, `listed` `requests`, a recorded `trace` (at `path`), or `sessions` of several
    turns. Texts are sent as a user's chat message unless `chat` is off. `max_tokens` bounds answers
    whose prompt brings no bound along; `max_tokens_by_class` sets it for one class of prompts.
    With `prediction_error`, policies are told how long answers will be, by a predictor whose
    logarithm has that standard deviation (0: it is right); null: nobody predicts.
    """

    source: str = "builtin"
    path: str | None = None
    language: str | None = None
    chat: bool = True
    num_requests: int | None = None
    max_tokens: int | None = None
    max_tokens_by_class: dict[str, int] = field(default_factory=dict)
    classes: dict[str, ClassConfig] = field(default_factory=dict)
    requests: dict[str, RequestConfig] = field(default_factory=dict)
    trace: TraceConfig = field(default_factory=TraceConfig)
    sessions: SessionsConfig = field(default_factory=SessionsConfig)
    arrivals: ArrivalsConfig = field(default_factory=ArrivalsConfig)
    ignore_eos: bool | None = None
    prediction_error: float | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        require_one_of("workload.source", self.source, SOURCES)
        require_at_least("workload.num_requests", self.num_requests, 1)
        require_at_least("workload.max_tokens", self.max_tokens, 1)
        for name, most in self.max_tokens_by_class.items():
            require_at_least(f"workload.max_tokens_by_class.{name}", most, 1)
        require_at_least("workload.prediction_error", self.prediction_error, 0)
        require_at_least("workload.temperature", self.temperature, 0)
        require_at_least("workload.top_k", self.top_k, 0)
        if not 0 < self.top_p <= 1:
            raise impossible("workload.top_p", self.top_p, "give a probability, 0 < top_p <= 1")
        if self.source == "file" and not self.path:
            raise impossible(
                "workload.path", self.path,
                "name the file of prompts, e.g. workload.path=prompts.jsonl (or .txt)",
            )
        for kind, values in (("synthetic", self.classes), ("listed", self.requests)):
            if self.source == kind and not values:
                group = "classes" if kind == "synthetic" else "requests"
                raise impossible(f"workload.{group}", values, f"source={kind} needs at least one")
        for name, request in self.requests.items():
            require_at_least(f"workload.requests.{name}.prompt_tokens", request.prompt_tokens, 1)
            require_at_least(f"workload.requests.{name}.output_tokens", request.output_tokens, 1)
            require_at_least(f"workload.requests.{name}.arrival_s", request.arrival_s, 0)


@dataclass
class BackendConfig:
    """What serves the workload: a file of `cbjax/experiment/backends`.

    Four are for `model`. `clock` is "wall", or "process", the seconds that this process computes,
    where others use the machine too. `cold_compile` compiles every cell's programs anew, as a fresh
    process without kept ones would. `time_attention` also measures the attention of a layer alone.
    `megastep` is the most iterations of one dispatch, rescheduled on the device in between.

    The rest is for `simulated`: `cost` names a cost model and gives its numbers; `host_s`,
    `compile_s` and `padded` say what else costs time, see `cbjax.simulate.simulate`.
    """

    name: str = "model"
    clock: str = "wall"
    cold_compile: bool = False
    time_attention: bool = False
    megastep: int = 1
    cost: dict[str, Any] = field(default_factory=dict)
    host_s: float = 0.0
    compile_s: float = 0.0
    padded: bool = False
    leap: bool = True

    def __post_init__(self) -> None:
        require_one_of("backend.clock", self.clock, ["wall", "process"])
        require_at_least("backend.megastep", self.megastep, 1)
        require_at_least("backend.host_s", self.host_s, 0)
        require_at_least("backend.compile_s", self.compile_s, 0)


@dataclass
class SloConfig:
    """Bounds in seconds, as `cbjax.metrics.Slo`; None: no bound.

    `percentiles` says of which percentile a load must meet a bound: 50, 90, 95 (usual) or 99.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    tpot_s: float | None = None
    max_itl_s: float | None = None
    e2e_s: float | None = None
    percentiles: dict[str, int] = field(default_factory=dict)


@dataclass
class RunConfig:
    """One run: one policy on one workload under one set of settings and one seed.

    `policy` holds the policy's name and its own knobs. `seats` and `budget` reach the knob that
    each system has for them, whatever it is called there, and are empty once they have.
    `iteration_tokens` bounds the tokens of an iteration, padding included; a `budget` given to a
    policy that has none bounds it too.
    """

    policy: dict[str, Any] = field(default_factory=dict)
    kv: KvConfig = field(default_factory=KvConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    slo: SloConfig = field(default_factory=SloConfig)
    seats: int | None = None
    budget: int | None = None
    iteration_tokens: int | None = None
    window: int = 64
    seed: int = 0
    record: str = "tokens"
    debug: bool = False

    def __post_init__(self) -> None:
        for name in ("seats", "budget", "iteration_tokens", "window"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("seed", self.seed, 0)
        require_one_of("record", self.record, LEVELS)


@dataclass
class RootConfig(RunConfig):
    """Everything a composed config holds: the base of all runs, the study, and how it is done.

    Every cell is run `repeats` times, with the seeds `seed`, `seed + 1` and so on. With `isolate`
    each has a process of its own. `dry_run` says what would be run, and runs nothing.
    """

    study: StudyConfig = field(default_factory=StudyConfig)
    repeats: int = 1
    isolate: bool = False
    dry_run: bool = False
    results_dir: str = "results"
    force: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("repeats", self.repeats, 1)
