"""Text to token ids and back, with the raw bytes of every token at hand.

Streams are put together from bytes, not from decoded pieces: a character may span tokens, and only
bytes can be joined without guessing. Special tokens are worth no bytes, so that they never show.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tokenizers

from cbjax.models.chat import render_chat

Message = Mapping[str, str]  # {"role": "user", "content": "..."}


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with its chat template and the ids that end a text."""

    backend: tokenizers.Tokenizer = field(repr=False)
    token_bytes: tuple[bytes, ...] = field(repr=False)  # [vocab_size]; b"" for special tokens
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    add_bos: bool = False  # whether plain text begins with bos_id
    chat_template: str | None = field(default=None, repr=False)

    @property
    def vocab_size(self) -> int:
        """Number of ids that stand for something; a model's V may be larger (padding rows)."""
        return len(self.token_bytes)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of plain text.

        Args:
            text: any text; the names of special tokens in it become those tokens.
            special: whether to begin with `bos_id` where the model wants that.
        """
        ids = self.backend.encode(text, add_special_tokens=False).ids
        bos = [self.bos_id] if special and self.add_bos and self.bos_id is not None else []
        return bos + ids if ids[:1] != bos else ids

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's next turn.

        Args:
            messages: `{"role": ..., "content": ...}` in order.

        Raises:
            ValueError: the model has no chat template, or it refuses these messages.
        """
        if self.chat_template is None:
            raise ValueError(
                "messages: this model has no chat template; pass the prompt as text instead"
            )
        text = render_chat(self.chat_template, messages, self._names())
        return self.encode(text, special=False)

    def tokens_to_bytes(self, token_ids: Iterable[int]) -> list[bytes]:
        """The bytes of each token; b"" for special tokens and for padding ids of the model."""
        known = self.token_bytes
        return [known[i] if 0 <= i < len(known) else b"" for i in token_ids]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of whole sequences; each broken character becomes one U+FFFD."""
        return b"".join(self.tokens_to_bytes(token_ids)).decode("utf-8", errors="replace")

    def _names(self) -> dict[str, str]:
        """Special tokens as the templates call them."""
        found = {"bos_token": self.bos_id, "eos_token": self.eos_ids[0] if self.eos_ids else None}
        return {k: self.backend.id_to_token(v) or "" for k, v in found.items() if v is not None}
