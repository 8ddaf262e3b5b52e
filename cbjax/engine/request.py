"""One request on the host: its prompt, how it samples, and the text it has become so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cbjax.engine.detokenise import detokenise
from cbjax.engine.sampling import Sampling
from cbjax.engine.stops import scan_stops
from cbjax.models import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Output:
    """What a step brought a request: new text, new tokens, and the end if it ended."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Completion:
    """A finished request.

    Attributes:
        finish_reason: "stop", "length", "abort", "refused".
        error: why it was refused, else None.
    """

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str
    error: str | None = None


@dataclass
class Request:
    """A living request; the engine's only mutable record of it."""

    request_id: int
    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    _pending: bytes = b""  # bytes of a character that is not whole yet
    _held: str = ""  # text that may still become a stop string
    _unsent: list[Output] = field(default_factory=list)  # kept back until the batch ends

    def take(self, token: int, finish_reason: str | None, tokenizer: Tokenizer) -> Output:
        """Append a token; a stop string in the text ends the request here."""
        self.token_ids.append(token)
        # An end or stop token is not part of the text.
        pieces = [] if finish_reason == "stop" else tokenizer.tokens_to_bytes([token])
        final = finish_reason is not None
        new, self._pending = detokenise(self._pending, pieces, final=final)
        scan = scan_stops(
            self._held, new, self.sampling.stop, final=final,
            armed=len(self.token_ids) >= self.sampling.min_tokens,
        )
        self._held = scan.held
        self.text += scan.text
        self.finish_reason = "stop" if scan.stop is not None else finish_reason
        return Output(self.request_id, scan.text, (token,), self.finish_reason)

    def end(self, finish_reason: str, error: str | None = None) -> Output:
        """End without another token; what was held back is shown."""
        rest, self._pending = detokenise(self._pending, b"", final=True)
        text = self._held + rest
        self._held = ""
        self.text += text
        self.finish_reason, self.error = finish_reason, error
        return Output(self.request_id, text, (), finish_reason, error)

    def keep(self, output: Output) -> None:
        """Hold an output until the batch ends."""
        self._unsent.append(output)

    def flush(self) -> list[Output]:
        """Outputs that were held."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def completion(self) -> Completion:
        """The record of the finished request."""
        return Completion(
            self.request_id, self.text, tuple(self.token_ids), len(self.prompt_ids),
            self.finish_reason or "", self.error,
        )


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a prompt given as text, chat messages or token ids.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    items = list(prompt) if isinstance(prompt, Sequence) else [prompt]
    messages = [item for item in items if isinstance(item, Mapping)]
    ids = [int(item) for item in items if isinstance(item, int | np.integer)]
    if messages and len(messages) == len(items):
        return tokenizer.encode_chat(messages)
    if len(ids) != len(items):
        raise ValueError(
            f"prompt of type {type(prompt).__name__}: give text, a list of chat messages "
            '({"role": ..., "content": ...}) or a list of token ids'
        )
    wrong = [token for token in ids if not 0 <= token < tokenizer.vocab_size]
    if wrong:
        raise ValueError(
            f"prompt: token id {wrong[0]} is outside 0..{tokenizer.vocab_size - 1}, the "
            "vocabulary of this model"
        )
    return ids
