"""Traces that give each prompt as ids of its blocks of tokens: equal leading ids, equal prefix."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from cbjax.workload.bad_rows import BadRows
from cbjax.workload.formats._rows import json_rows, whole_of
from cbjax.workload.segments import of_blocks
from cbjax.workload.trace import Trace, trace_of_columns

Row = tuple[float, int, int, np.ndarray, str]


def read_hashed(
    name: str, path: Path, limit: int | None, *, block: int, unit_s: float,
    class_field: str | None = None,
) -> Trace:
    """Read rows of `timestamp`, `input_length`, `output_length` and `hash_ids`.

    Args:
        name: of the format.
        path: a JSON Lines file.
        limit: most lines to look at.
        block: tokens of a block; the last block of a prompt may be filled in part.
        unit_s: seconds of one unit of `timestamp`.
        class_field: what names the class of a request.

    A prompt whose last, partly filled block has no id shares all but that block.
    """
    unshared = count(-1, -1)

    def parse(row: Mapping[str, Any]) -> Row:
        at: Any = row.get("timestamp")
        if type(at) not in (int, float) or not 0 <= at < np.inf:
            raise ValueError("timestamp is no number from 0")
        prompt, output = whole_of(row, "input_length"), whole_of(row, "output_length")
        ids = np.asarray(row.get("hash_ids"))
        if ids.ndim != 1 or (ids.size and ids.dtype != np.int64):
            raise ValueError("hash_ids is no list of whole numbers")
        missing = -(-prompt // block) - len(ids)
        if missing == 1 and prompt % block:
            ids = np.append(ids.astype(np.int64), next(unshared))
        elif missing:
            raise ValueError(f"hash_ids does not have one id per {block} tokens")
        return at * unit_s, prompt, output, ids, str(row.get(class_field or "", name))

    numbered, bad_rows = json_rows(path, parse, limit)
    return _trace(name, [row for _, row in numbered], block, bad_rows, class_field is not None)


def _trace(
    name: str, rows: list[Row], block: int, bad_rows: BadRows, has_classes: bool
) -> Trace:
    at, prompts, outputs, ids, names = zip(*rows, strict=True) if rows else ((),) * 5
    arrival, prompt_tokens = np.asarray(at, np.float64), np.asarray(prompts, np.int64)
    return trace_of_columns(
        name, arrival - arrival.min() if rows else arrival, prompt_tokens,
        np.asarray(outputs, np.int64), class_of=names if has_classes else None,
        segments=of_blocks(ids, prompt_tokens, block), bad_rows=bad_rows,
    )
