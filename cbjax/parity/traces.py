"""Traces: reading recorded decisions, serving their workload, and comparing field by field."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbjax.core.limits import Limits, system
from cbjax.core.log import IterationRecord
from cbjax.core.policy import Policy
from cbjax.parity.driver import Watch, run_watched
from cbjax.parity.workload import Workload

Fields = dict[str, Any]  # by the names of the recording


class NotRead(ValueError):
    """A recording of something that our policy does not do yet; the text says of what."""


@dataclass(frozen=True)
class Trace:
    """One recorded workload and what the original decided on it.

    Attributes:
        name: how to speak of it, for example "vllm 0.32.0 seed 7".
        policy: ours, with the recorded knobs.
        block_size, num_blocks, max_length, swap_blocks: the numbers of its system.
        workload: what was served.
        iterations: the recorded fields of every iteration that are compared.
        marked: why this trace cannot be equal by design (the original hung or raised), or None. A
            marked trace is served all the same: ours must end.
    """

    name: str
    policy: Policy
    block_size: int
    num_blocks: int
    max_length: int
    workload: Workload
    iterations: list[Fields]
    swap_blocks: int = 0
    marked: str | None = None


@dataclass(frozen=True)
class Format:
    """How one system's recordings are read and compared.

    Attributes:
        system: the name that its recordings bear.
        limits: capacities wide enough for all of them, so that one program serves them.
        read: one recorded object -> Trace.
        fields: one of our iterations (record, watched values) -> the fields of the recording.
        watch: what `fields` needs beyond the record; see `run_watched`.
        align: our fields of all iterations -> the same, moved to where the recording has them.
    """

    system: str
    limits: Limits
    read: Callable[[dict[str, Any]], Trace]
    fields: Callable[[IterationRecord, dict[str, Any]], Fields]
    watch: Watch | None = None
    align: Callable[[list[Fields]], list[Fields]] = list


@dataclass(frozen=True)
class Difference:
    """The first iteration in which two sides differ; None = that side had already ended."""

    iteration: int
    ours: Fields | None
    theirs: Fields | None
    reason: str  # why ours admitted no more, as a word

    @property
    def names(self) -> list[str]:
        """The fields that differ."""
        if self.ours is None or self.theirs is None:
            return ["length"]
        return [name for name, value in self.theirs.items() if self.ours.get(name) != value]


def load(path: Path) -> Iterator[dict[str, Any]]:
    """The recorded objects of a file, one JSON object a line, compact ones expanded.

    Raises:
        ValueError: naming the line that is not a recorded trace.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                recorded = json.loads(line)
                yield {key: _expand(value) for key, value in recorded.items()}
            except (json.JSONDecodeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: not a recorded trace: {error}") from error


def compact(recorded: dict[str, Any]) -> dict[str, Any]:
    """The same object with its lists of records as a header and rows: a third of the size."""
    return {key: _shrink(value) for key, value in recorded.items()}


def _expand(value: Any) -> Any:
    if not (isinstance(value, dict) and set(value) == {"columns", "rows"}):
        return value
    return [
        {name: cell for name, cell in zip(value["columns"], row, strict=True) if cell != _ABSENT}
        for row in value["rows"]
    ]


def _shrink(value: Any) -> Any:
    if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
        return value
    columns = list(dict.fromkeys(name for one in value for name in one))
    return dict(
        columns=columns, rows=[[one.get(name, _ABSENT) for name in columns] for one in value]
    )


_ABSENT = "-"  # a field that this record does not have


def replay(trace: Trace, form: Format) -> tuple[list[Fields], list[IterationRecord]]:
    """Our decisions on the recorded workload: the fields to compare, and the whole records."""
    numbers = system(
        form.limits, block_size=trace.block_size, num_blocks=trace.num_blocks,
        max_length=trace.max_length, swap_blocks=trace.swap_blocks,
    )
    turns = run_watched(trace.policy, trace.workload, form.limits, numbers, watch=form.watch)
    ours = form.align([form.fields(entry, watched) for entry, watched in turns])
    # As JSON has it: tuples are lists.
    return json.loads(json.dumps(ours)), [entry for entry, _ in turns]


def compare(trace: Trace, form: Format) -> Difference | None:
    """The first decision in which ours and the recorded ones differ, or None."""
    ours, records = replay(trace, form)
    return first_difference(trace.iterations, ours, records)


def first_difference(
    theirs: list[Fields], ours: list[Fields], records: list[IterationRecord]
) -> Difference | None:
    """As `compare`, for decisions that are already at hand."""
    for index in range(max(len(ours), len(theirs))):
        mine = ours[index] if index < len(ours) else None
        other = theirs[index] if index < len(theirs) else None
        reason = records[index].limited_by if index < len(records) else ""
        found = Difference(index, mine, other, reason)
        if found.names:
            return found
    return None
