"""The prompts that come with the package, written for it: English and Japanese, three classes.

`short_answer` asks for a few words, `long_prompt` brings text to summarise or to search, and
`long_generation` asks for a long text. Each brings a bound on its output that suits its class.
"""

from importlib.resources import as_file, files

from cbjax.workload.checks import require
from cbjax.workload.prompts import read_prompts
from cbjax.workload.records import Prompt

BUILTIN_CLASSES = ("short_answer", "long_prompt", "long_generation")
BUILTIN_LANGUAGES = ("en", "ja")


def builtin_prompts(
    class_name: str | None = None, *, language: str | None = None, chat: bool = True
) -> tuple[Prompt, ...]:
    """The package's own prompts.

    Args:
        class_name: one of `BUILTIN_CLASSES`; None takes all.
        language: one of `BUILTIN_LANGUAGES`; None takes both.
        chat: as the message of a user, which instruction-tuned models expect; else plain text.

    Raises:
        ValueError: an unknown class or language.
    """
    require(class_name in (None, *BUILTIN_CLASSES), "class_name", class_name,
            f"use one of {BUILTIN_CLASSES}, or leave it out")
    require(language in (None, *BUILTIN_LANGUAGES), "language", language,
            f"use one of {BUILTIN_LANGUAGES}, or leave it out")
    wanted = BUILTIN_LANGUAGES if language is None else (language,)
    prompts = [prompt for name in wanted for prompt in _of_language(name)]
    chosen = (prompt for prompt in prompts if class_name in (None, prompt.class_name))
    return tuple(prompt.as_chat() if chat else prompt for prompt in chosen)


def _of_language(language: str) -> tuple[Prompt, ...]:
    with as_file(files("cbjax.workload") / "data" / f"prompts_{language}.jsonl") as path:
        return read_prompts(path).prompts
