"""Chat templates: the Jinja programs that turn a conversation into a prompt.

A template comes with the weights, from whoever made them, and is therefore run in a sandbox. The
environment is the one that templates are written for: trimmed blocks, `tojson`, `strftime_now`,
`raise_exception`.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What a template may raise: its own refusals, and Python's errors of the expressions in it.
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], special: Mapping[str, str]
) -> str:
    """Render a conversation up to the point where the assistant speaks.

    Args:
        template: Jinja source.
        messages: `{"role": ..., "content": ...}` in order.
        special: names such as `bos_token` and the token each stands for.

    Raises:
        ValueError: a message lacks a field, or the template is broken or refuses the messages.
    """
    for i, message in enumerate(messages):
        lacking = [name for name in ("role", "content") if name not in message]
        if lacking:
            raise ValueError(f"messages[{i}]: {', '.join(lacking)} missing in {dict(message)!r}")
    names = {"bos_token": "", "eos_token": "", **special}
    try:
        return (
            _environment()
            .from_string(template)
            .render(messages=messages, add_generation_prompt=True, **names)
        )
    except _FAILURES as error:
        raise ValueError(f"messages: the model's chat template refuses them: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
