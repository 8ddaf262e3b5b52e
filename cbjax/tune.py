"""`python -m cbjax.tune model=smollm2 [KEY=VALUE ...]`: the ladder that suits a model here.

Times the candidate rungs, chooses those that earn their compile time on typical batches, and keeps
them in the user's cache folder, where `ladder=tuned` finds them. In Python: `cbjax.engine.tuning`.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cbjax.config.errors import impossible, require_at_least, require_one_of
from cbjax.config.words import read_words

WRONG = 2
USAGE = """\
python -m cbjax.tune [KEY=VALUE ...]

  model       "smollm2", "tiny", a folder, a .gguf file or "hf:<repo>" (default smollm2)
  dtype       float32 or bfloat16 (float32)
  attention   a back end of the attention (the one for this platform)
  seats       most sequences of an iteration (32)
  budget      most tokens of an iteration (256)
  prompt      median of the prompts' lengths in tokens, log-normal (96)
  output      median of the outputs' lengths (64)
  load        share of the seats that requests keep busy (0.7)
  iterations  between two starts that compile: what a rung has to earn its compile time in (20000)

Then `python -m cbjax.run +experiment=NAME ladder=tuned` uses it."""


@dataclass(frozen=True)
class Question:
    """What is tuned for."""

    model: str = "smollm2"
    dtype: str = "float32"
    attention: str | None = None
    seats: int = 32
    budget: int = 256
    prompt: int = 96
    output: int = 64
    load: float = 0.7
    iterations: int = 20_000

    def __post_init__(self) -> None:
        for name in ("seats", "budget", "prompt", "output", "iterations"):
            require_at_least(name, getattr(self, name), 1)
        require_one_of("dtype", self.dtype, ["float32", "bfloat16"])
        if self.budget < self.seats:
            raise impossible("budget", self.budget, f"give at least the seats, {self.seats}")
        if self.load <= 0:
            raise impossible("load", self.load, "give a share of the seats above 0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, choose, keep, print; 0, or 2 for a wrong setting."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        _answer(Question(**read_words(Question, arguments)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    return 0


def typical_batches(question: Question, requests: int = 200) -> dict[tuple[int, int], float]:
    """How often batches of (tokens, sequences) come: the scheduler's own, without a model."""
    import polars as pl

    from cbjax import policies
    from cbjax.engine import serve_with_unit_clock
    from cbjax.metrics import Recorder
    from cbjax.workload import Arrivals, Lengths, RequestClass, make_workload

    longest = 8 * max(question.prompt, question.output)
    lengths = {
        name: Lengths("log_normal", low=4, high=longest, median=median, sigma=0.8)
        for name, median in (("prompt", question.prompt), ("output", question.output))
    }
    rate = question.load * question.seats / (1.4 * question.output)
    kind = RequestClass(
        "typical", prompt_lengths=lengths["prompt"], output_lengths=lengths["output"]
    )
    workload = make_workload([kind], requests, arrivals=Arrivals("poisson", rate))
    recorder = Recorder()
    serve_with_unit_clock(
        policies.vllm(max_num_batched_tokens=question.budget, max_num_seqs=question.seats),
        workload, recorder, block_size=16, max_length=2 * longest + 2,
        num_blocks=question.seats * (2 * longest // 16 + 1),
    )
    schedule = recorder.tables().schedule
    assert schedule is not None
    batches = (
        schedule.filter(pl.col("tokens") > 0).group_by("iteration")
        .agg(pl.col("tokens").sum(), pl.len().alias("sequences"))
    )
    return dict(Counter(batches.select("tokens", "sequences").iter_rows()))


def _answer(question: Question) -> None:
    from rich.console import Console
    from rich.table import Table

    from cbjax import policies
    from cbjax.core.ladder import by_cost
    from cbjax.engine import Engine, tuning
    from cbjax.models import load_model

    model = load_model(question.model, question.dtype)
    engine = Engine(
        model, dtype=question.dtype, attention=question.attention,
        policy=policies.vllm(
            max_num_batched_tokens=question.budget, max_num_seqs=question.seats
        ),
        num_blocks=8 * question.seats,
    )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    with console.status("") as status:
        costs = tuning.measure(
            engine, tuning.candidates(question.budget, question.seats),
            progress=lambda label, done, total: status.update(f"{label} ({done}/{total})"),
        )
    batches = typical_batches(question)
    chosen = tuning.choose_rungs(costs, batches, question.iterations)
    path = tuning.tuned_file(question.model, question.dtype, question.attention)
    tuning.keep(path, chosen)

    taken = by_cost(chosen).rungs
    table = Table("rung", "step ms", "compile s", "chosen", title=f"{question.model} here")
    for cost in costs:
        mark = "yes" if cost.rung in taken else ""
        table.add_row(str(cost.rung), f"{cost.step_s * 1e3:.2f}", f"{cost.compile_s:.2f}", mark)
    console.print(table)
    everything = {cost.rung: cost.step_s for cost in costs}
    for name, rungs in (
        ("greatest only", {max(everything): everything[max(everything)]}),
        ("tuned", chosen), ("all candidates", everything),
    ):
        mean = tuning.expected_step(rungs, batches)
        console.print(f"{name}: {mean * 1e3:.2f} ms an iteration, {len(rungs)} rungs")
    console.print(f"kept: {path}")


if __name__ == "__main__":
    sys.exit(main())
