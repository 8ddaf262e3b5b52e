"""Results of quick benchmarks over time: a history file, and whether a change made them worse.

    python -m benchmarks.history record [--samples 9] [--file FILE]
    python -m benchmarks.history compare [BEFORE [AFTER]] [--file FILE]

`record` appends one line per benchmark: commit, date, versions, machine, what was counted, and a
sample per process. Instructions of the process are counted where `perf stat` may count them, as
they hardly vary; elsewhere CPU seconds stand in for them, and the line says which. (Callgrind
counts too, but knows none of the vector instructions that XLA writes for recent cores.)

`compare` takes two commits, by default the last two of this machine: better, same or worse per
benchmark, by the bootstrap's interval of the ratio of medians. It never times anything itself.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

INSTRUCTIONS, CPU = "instructions", "cpu_s"
PERF = ("perf", "stat", "-x", ",", "-e", "instructions:u")
# A change below this is called none, however sure: layout of code and memory alone moves as much.
SMALLEST = {INSTRUCTIONS: 0.01, CPU: 0.05}
RESAMPLES = 4000
FEW, MANY = 50, 450  # turns of a process; what it takes to start is in both
BETTER, SAME, WORSE = "better", "same", "worse"


@dataclass(frozen=True)
class Record:
    """Samples of one benchmark at one commit; each is per turn."""

    commit: str
    date: str
    versions: dict[str, str | None]
    machine: str
    metric: str
    counted: str  # INSTRUCTIONS or CPU
    samples: list[float]


@dataclass(frozen=True)
class Comparison:
    """After over before: ratio of medians with its 95 % interval, and what that means."""

    metric: str
    counted: str
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Better or worse only where the whole interval lies beyond the smallest change."""
        smallest = SMALLEST[self.counted]
        if self.high < 1 - smallest:
            return BETTER
        return WORSE if self.low > 1 + smallest else SAME

    def __str__(self) -> str:
        return (
            f"{self.metric:24} {self.verdict:7} x{self.ratio:.3f} "
            f"({self.low:.3f} to {self.high:.3f}) {self.counted}"
        )


def scheduler_turns(turns: int) -> float:
    """CPU seconds of iterations of scheduler and host, without a model."""
    from benchmarks.growth import idle_loop

    return _seconds(idle_loop().step, turns)


def engine_turns(turns: int) -> float:
    """CPU seconds of iterations of the engine on the smallest model, four sequences."""
    from cbjax import policies
    from cbjax.engine import Engine
    from cbjax.models import load_model

    engine = Engine(
        load_model("tiny"), policy=policies.vllm(max_num_batched_tokens=16, max_num_seqs=4),
        block_size=4, num_blocks=1024,
    )
    for _ in range(4):
        engine.submit([1, 2, 3], max_tokens=turns + 20, ignore_eos=True)
    return _seconds(engine.step, turns)


BENCHMARKS: dict[str, Callable[[int], float]] = {
    "scheduler": scheduler_turns, "engine": engine_turns,
}


def compare(before: Record, after: Record, seed: int = 0) -> Comparison:
    """The change of one benchmark, from a record to a later one.

    With fewer than six samples on a side the interval is all that the samples allow: from the least
    to the greatest ratio of two of them.

    Raises:
        ValueError: the two do not measure the same on the same machine.
    """
    for name in ("metric", "machine", "counted"):
        if (one := getattr(before, name)) != (other := getattr(after, name)):
            raise ValueError(
                f"{name} = {one!r} before and {other!r} after: record both on one machine and "
                "compare what was counted alike"
            )
    old, new = np.array(before.samples), np.array(after.samples)
    ratio = float(np.median(new) / np.median(old))
    if min(len(old), len(new)) < 6:
        low, high = new.min() / old.max(), new.max() / old.min()
    else:
        random = np.random.default_rng(seed)
        drawn = [
            np.median(random.choice(values, (RESAMPLES, len(values))), axis=1)
            for values in (new, old)
        ]
        low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975))
    return Comparison(before.metric, before.counted, ratio, float(low), float(high))


def read(path: Path) -> list[Record]:
    """All lines of a history file, oldest first.

    Raises:
        ValueError: there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no history yet; python -m benchmarks.history record starts it")
    return [Record(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def pairs(records: Sequence[Record], before: str | None, after: str | None) -> list[tuple]:
    """Records of two commits, benchmark by benchmark; the latest of each.

    Args:
        records: oldest first.
        before, after: beginnings of commits; None: the last but one and the last of them.

    Raises:
        ValueError: a commit is not there, or only one is.
    """
    commits = list(dict.fromkeys(record.commit for record in records))
    if after is None and before is None and len(commits) < 2:
        raise ValueError("only one commit in the history: record another one first")
    after = after or commits[-1]
    before = before or next(one for one in reversed(commits) if not one.startswith(after))
    chosen = []
    for wanted in (before, after):
        found = {one.metric: one for one in records if one.commit.startswith(wanted)}
        if not found:
            raise ValueError(f"commit {wanted}: not in the history; there are {', '.join(commits)}")
        chosen.append(found)
    return [(chosen[0][one], chosen[1][one]) for one in chosen[1] if one in chosen[0]]


def can_count() -> bool:
    """Whether `perf stat` is here and may count instructions."""
    if shutil.which(PERF[0]) is None:
        return False
    done = subprocess.run([*PERF, "true"], capture_output=True, text=True)
    return done.returncode == 0 and done.stderr.partition(",")[0].strip().isdigit()


def sample(name: str, counting: bool) -> float:
    """One process's cost per turn: instructions, or CPU seconds."""
    if not counting:
        return float(_child(name, MANY).stdout.split()[-1]) / MANY
    few, many = (
        int(_child(name, turns, PERF).stderr.splitlines()[-1].partition(",")[0])
        for turns in (FEW, MANY)
    )
    return (many - few) / (MANY - FEW)


def _child(name: str, turns: int, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess:
    command = [*prefix, sys.executable, "-m", "benchmarks.history", "work", name, str(turns)]
    # Few threads and no waiting loops of theirs in the count.
    environment = {**os.environ, "NPROC": "1"}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


def _seconds(step: Callable[[], object], turns: int) -> float:
    for _ in range(10):
        step()
    begun = time.process_time()
    for _ in range(turns):
        step()
    return time.process_time() - begun


def _record(samples: int, path: Path) -> None:
    from cbjax.results.environment import describe_environment

    about = describe_environment()
    machine = f"{about['processor']}, {about['cores']} cores, {about['system']}"
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], check=True, capture_output=True, text=True
    ).stdout.strip()
    counting = can_count()
    counted = INSTRUCTIONS if counting else CPU
    print(f"{commit} on {machine}: {counted}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in BENCHMARKS:
        values = [sample(name, counting) for _ in range(samples)]
        record = Record(commit, now, about["versions"], machine, name, counted, values)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        print(f"{name:24} median {np.median(values):.6g}, {min(values):.6g} to {max(values):.6g}")
    print(f"appended to {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare; 1 where something is worse, 2 for a wrong request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    record, against = verbs.add_parser("record"), verbs.add_parser("compare")
    record.add_argument("--samples", type=int, default=9)
    against.add_argument("before", nargs="?")
    against.add_argument("after", nargs="?")
    for verb in (record, against):
        verb.add_argument("--file", type=Path, default=Path("results/benchmarks/history.jsonl"))
    work = verbs.add_parser("work", help="one process of `record`")
    work.add_argument("name", choices=BENCHMARKS)
    work.add_argument("turns", type=int)
    given = parser.parse_args(arguments)
    if given.verb == "work":
        print(BENCHMARKS[given.name](given.turns))
        return 0
    if given.verb == "record":
        _record(given.samples, given.file)
        return 0
    try:
        found = [compare(*pair) for pair in pairs(read(given.file), given.before, given.after)]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, found)))
    return int(any(one.verdict == WORSE for one in found))


if __name__ == "__main__":
    sys.exit(main())
