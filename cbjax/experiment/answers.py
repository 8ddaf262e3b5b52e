"""The texts a run produced, kept beside its tables so that a finished run can still show them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbjax.experiment.backends import Answer
from cbjax.workload import PromptContent, Workload

FILE = "answers.jsonl"


@dataclass(frozen=True)
class Dialogue:
    """A prompt and its answer in words."""

    request_id: int
    class_name: str
    prompt: str
    answer: str
    finish_reason: str


def write_answers(folder: Path, workload: Workload, answers: Sequence[Answer]) -> None:
    """Write one JSON line per answer; nothing where there are none."""
    if not answers:
        return
    by_id = {request.request_id: request for request in workload.requests}
    lines = []
    for answer in answers:
        request = by_id[answer.request_id]
        line: Mapping[str, Any] = {
            "request_id": answer.request_id,
            "class": request.class_name,
            "prompt": _in_words(request.prompt),
            "answer": answer.text,
            "finish_reason": answer.finish_reason,
            "error": answer.error,
        }
        lines.append(json.dumps(line, ensure_ascii=False))
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_answers(folder: Path) -> list[Dialogue]:
    """The dialogues of a run; empty where its backend generates no text."""
    file = folder / FILE
    if not file.is_file():
        return []
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Dialogue(row["request_id"], row["class"], row["prompt"], row["answer"],
                 row["finish_reason"])
        for row in rows
    ]


def one_of_each_class(dialogues: Sequence[Dialogue], count: int) -> list[Dialogue]:
    """Up to `count` dialogues, of as many classes as there are, in the order of their ids."""
    first: dict[str, Dialogue] = {}
    for dialogue in dialogues:
        if dialogue.answer.strip():
            first.setdefault(dialogue.class_name, dialogue)
    chosen = list(first.values())[:count]
    others = [one for one in dialogues if one not in chosen and one.answer.strip()]
    chosen += others[: count - len(chosen)]
    return sorted(chosen, key=lambda dialogue: dialogue.request_id)


def _in_words(prompt: PromptContent | None) -> str:
    match prompt:
        case None:
            return ""
        case str():
            return prompt
    said = [item.get("content", "") for item in prompt if isinstance(item, Mapping)]
    return "\n".join(said) if said else f"{len(prompt)} token ids"
