"""`python -m cbjax.roofline hardware=v6e model=llama3.1-8b [KEY=VALUE ...]`: the floor on paper.

What one iteration must move and compute, and the least time that takes, as a table, its rows as a
file, and a figure. Nothing is measured. In Python: `cbjax.hardware`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from cbjax import hardware
from cbjax.config.errors import impossible, require_at_least
from cbjax.config.words import read_words
from cbjax.hardware import models, roofline

WRONG = 2
USAGE = f"""\
python -m cbjax.roofline hardware=NAME model=NAME [KEY=VALUE ...]

  hardware       {", ".join(hardware.names())}
  model          {", ".join(models.names())}
  batch          sequences that decode (default 1,8,32,128)
  context        cached tokens of each (1024,8192,32768)
  chunk          tokens of a prefill beside them (0,512)
  chunk_context  cached tokens of that prompt (0)
  block_size     tokens of a KV block (16)
  dtype          of weights and operands (bfloat16)
  kv_dtype       of the KV cache (as dtype)
  devices        that share the model by tensor parallelism (1)
  memory_fraction, activations   share of memory to use (0.9), bytes of it for activations (0)
  results_dir    where rows and figure go (results)

A comma lists several values: every combination is a row."""


@dataclass(frozen=True)
class Question:
    """What is asked; lists make rows."""

    hardware: str
    model: str
    batch: tuple[int, ...] = (1, 8, 32, 128)
    context: tuple[int, ...] = (1024, 8192, 32768)
    chunk: tuple[int, ...] = (0, 512)
    chunk_context: tuple[int, ...] = (0,)
    block_size: tuple[int, ...] = (16,)
    dtype: str = "bfloat16"
    kv_dtype: str | None = None
    devices: int = 1
    memory_fraction: float = 0.9
    activations: float = 0.0
    results_dir: str = "results"

    def __post_init__(self) -> None:
        for name in ("batch", "context", "chunk", "chunk_context", "block_size"):
            for value in getattr(self, name):
                require_at_least(name, value, 1 if name == "block_size" else 0)
        if not (any(self.batch) or any(self.chunk)):
            raise impossible("batch", self.batch, "give sequences, or a chunk above 0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, keep rows and figure; 0, or 2 for a wrong setting."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        _answer(read(arguments))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    return 0


def read(arguments: Sequence[str]) -> Question:
    """`key=value` words as a question.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or no hardware or model.
    """
    given = read_words(Question, arguments)
    for key, names in (("hardware", hardware.names()), ("model", models.names())):
        if key not in given:
            raise impossible(key, None, f"choose one of {', '.join(names)}")
    return Question(**given)


def rows_of(question: Question) -> list[dict[str, Any]]:
    """One row per combination: sizes, bytes, operations, intensity, the floor, and whether it fits.

    `kv_fits` says whether `num_blocks`, the device's, hold the KV of all these sequences.

    Raises:
        ValueError: an unknown name or type, or a model that does not fit.
    """
    chip, costs = _subject(question)
    rows = []
    for block_size in question.block_size:
        blocks = roofline.kv_blocks(
            chip, costs, block_size, memory_fraction=question.memory_fraction,
            activations=question.activations,
        )
        for batch, context, chunk, chunk_context in product(
            question.batch, question.context, question.chunk, question.chunk_context
        ):
            if not batch and not chunk:
                continue
            work = roofline.iteration(
                batch=batch, context=context, chunk=chunk, chunk_context=chunk_context,
                block_size=block_size,
            )
            least = roofline.floor(chip, costs, work)
            rows.append({
                "batch": batch, "context": context, "chunk": chunk, "chunk_context": chunk_context,
                "block_size": block_size, "bytes": float(least.bytes),
                "operations": float(least.operations), "intensity": float(least.intensity),
                "bound": "memory" if least.memory_s >= least.compute_s else "compute",
                "floor_s": float(least.seconds),
                "tokens_per_s": float(work.tokens / least.seconds),
                "num_blocks": blocks,
                "kv_fits": batch * _blocks(context + 1, block_size)
                + _blocks(chunk and chunk_context + chunk, block_size) <= blocks,
            })
    return rows


def _blocks(positions: int, block_size: int) -> int:
    return -(-positions // block_size)


def _subject(question: Question) -> tuple[hardware.Accelerator, hardware.StepCosts]:
    costs = roofline.step_costs(
        models.load(question.model), dtype=question.dtype, kv_dtype=question.kv_dtype,
        devices=question.devices,
    )
    return hardware.load(question.hardware), costs


def _answer(question: Question) -> None:
    rows = rows_of(question)
    import polars as pl
    from rich.console import Console

    from cbjax.report import save
    from cbjax.report.roofline import draw_roofline, roofline_table

    chip, costs = _subject(question)
    where = f"{question.model} in {question.dtype} on {question.devices} x {chip.title}"
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(roofline_table(rows, f"{where}: floor of an iteration, not measured"))
    console.print(
        f"per device: weights {costs.memory / 1e9:.2f} GB, KV {costs.kv_token / 1e3:.1f} kB a "
        f"token, {(costs.token + costs.logit) / 1e9:.2f} GFLOP a decoded token without attention\n"
        f"rates: {chip.bandwidth / 1e12:g} TB/s, {chip.rate(question.dtype) / 1e12:g} TFLOP/s "
        f"({chip.source}{'; ' + chip.note if chip.note else ''})"
    )
    folder = Path(question.results_dir) / "roofline" / f"{question.hardware}-{question.model}"
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_parquet(folder / "rows.parquet")
    figure = draw_roofline(
        chip, costs, where, contexts=question.context, batches=question.batch,
        block_size=question.block_size[0], memory_fraction=question.memory_fraction,
        activations=question.activations,
    )
    save(figure, folder / "roofline.png")
    console.print(f"rows and figure: {folder}")


if __name__ == "__main__":
    sys.exit(main())
