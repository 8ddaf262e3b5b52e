"""Prompts from files: one text per line, or JSON Lines with the field names in common use.

A row that holds no usable prompt is counted and shown, and stops the loading unless the caller
chose to skip such rows; it never goes missing unnoticed.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cbjax.workload.bad_rows import EXCERPT, BadRow, BadRows, OnBadRow, require_choice, settle
from cbjax.workload.checks import require
from cbjax.workload.records import Prompt, PromptContent

PromptFormat = Literal["text", "jsonl"]

PROMPT_FIELDS = ("prompt", "messages", "turns", "text", "question")
"""Where a JSON row may keep its prompt; the first of these that is present counts."""

_FORMAT_OF_SUFFIX: dict[str, PromptFormat] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text"
}

@dataclass(frozen=True)
class PromptFile:
    """What a file held.

    Attributes:
        prompts: in file order.
        bad_rows: rows left out.
        blank_lines: lines with nothing on them.
    """

    prompts: tuple[Prompt, ...]
    bad_rows: tuple[BadRow, ...]
    blank_lines: int


def read_prompts(
    path: str | Path,
    *,
    format: PromptFormat | None = None,
    on_bad_row: OnBadRow = "refuse",
    class_field: str = "class_name",
    limit: int | None = None,
) -> PromptFile:
    """Read prompts from a text or JSON Lines file, gzipped or not.

    A JSON row is a string, or an object with one of `PROMPT_FIELDS`: a text, token ids, or a
    conversation of which the first turn is taken. `max_tokens` beside it is honoured.

    Args:
        path: the file; `.gz` is unpacked.
        format: None goes by the ending: `.txt`, `.jsonl`, `.ndjson`.
        on_bad_row: `refuse` raises and shows them, `skip` warns and leaves them out.
        class_field: the field that names a row's class; rows without it are of class `default`.
        limit: most prompts to take; None takes all. Rows behind the last one are not looked at.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: bad rows under `refuse`, no prompts at all, or an impossible argument.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    ending = "".join(suffixes[:-1][-1:] if zipped else suffixes[-1:])
    kind = format or _FORMAT_OF_SUFFIX.get(ending)
    require(kind in get_args(PromptFormat), "format", kind,
            f"{path.name} does not tell; use one of {get_args(PromptFormat)}")
    require_choice(on_bad_row)
    require(limit is None or limit >= 1, "limit", limit, "use at least 1, or leave it out")
    if not path.is_file():
        raise FileNotFoundError(f"path = {str(path)!r}: there is no such file; check the spelling")

    prompts: list[Prompt] = []
    bad_rows: list[BadRow] = []
    blank_lines = 0
    for number, line in _lines(path, zipped):
        if len(prompts) == limit:
            break
        if not line.strip():
            blank_lines += 1
            continue
        try:
            prompts.append(_prompt_of_line(line, kind == "jsonl", class_field))
        except ValueError as problem:
            excerpt = line[:EXCERPT].decode("utf-8", errors="replace")
            bad_rows.append(BadRow(number, str(problem), excerpt))

    settle(path, BadRows.of(bad_rows), on_bad_row)
    require(prompts, "path", str(path), "the file holds no prompts; give one that does")
    return PromptFile(tuple(prompts), tuple(bad_rows), blank_lines)


def _lines(path: Path, zipped: bool) -> Iterator[tuple[int, bytes]]:
    """Numbered lines without their ends; bytes, so that a bad character spoils one line only."""
    opened = gzip.open(path, "rb") if zipped else path.open("rb")
    with opened as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            yield number, line.rstrip(b"\r\n")


def _prompt_of_line(line: bytes, is_json: bool, class_field: str) -> Prompt:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not is_json:
        return Prompt(text.strip())
    try:
        row = json.loads(text)
    except ValueError as problem:
        raise ValueError(f"not JSON ({problem})") from None
    if isinstance(row, str):
        return Prompt(_text(row, "the row"))
    if not isinstance(row, dict):
        raise ValueError("neither an object nor a string")
    field = next((name for name in PROMPT_FIELDS if row.get(name) is not None), None)
    if field is None:
        raise ValueError(f"none of the fields {', '.join(PROMPT_FIELDS)}")
    max_tokens = row.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise ValueError(f"max_tokens is {max_tokens!r}, not a whole number from 1")
    class_name = row.get(class_field)
    name = "default" if class_name is None else str(class_name)
    return Prompt(_content(row[field], field), name, max_tokens)


def _content(value: Any, field: str) -> PromptContent:
    if not isinstance(value, list) or not value:
        return _text(value, field)
    if field == "turns" and not isinstance(value[0], dict):
        return _text(value[0], "the first of turns")
    if all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    return _first_turn(value, field)


def _first_turn(messages: list[Any], field: str) -> PromptContent:
    """A conversation up to and with its first message of a user."""
    taken = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f"{field} holds something that is no message with a role")
        content = _text(message.get("content"), f"the content of {message['role']}")
        taken.append({"role": message["role"], "content": content})
        if message["role"] == "user":
            return tuple(taken)
    raise ValueError(f"{field} holds no message of a user")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is no text")
    if not value.strip():
        raise ValueError(f"{where} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds half a character") from None
    return value
