"""Token ids for every request: tokenised texts, and made-up ids where a prompt is only a length."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from cbjax.workload.records import Message, Workload, WorkloadRequest, is_token_ids
from cbjax.workload.segments import around, excluded_below, segment_token_ids
from cbjax.workload.streams import Stream, generator


class Encoder(Protocol):
    """The part of a tokenizer that a workload needs."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins."""


def synthetic_token_ids(
    seed: int, request_id: int, length: int, vocab_size: int, excluded_ids: Sequence[int] = ()
) -> tuple[int, ...]:
    """`length` random token ids, the same for a request whatever else the workload holds.

    Args:
        seed: the seed of the workload.
        request_id: the request.
        length: number of token ids.
        vocab_size: V; ids are below it.
        excluded_ids: never drawn, such as end-of-sequence ids.

    Raises:
        ValueError: `excluded_ids` leave nothing to draw from.
    """
    usable = vocab_size - len(excluded_below(vocab_size, excluded_ids))
    drawn = generator(seed, Stream.TOKENS, request_id).integers(0, usable, length)
    return around(drawn, vocab_size, excluded_ids)


def made_up_token_ids(
    seed: int, request: WorkloadRequest, vocab_size: int, excluded_ids: Sequence[int] = ()
) -> tuple[int, ...]:
    """Token ids of a prompt without a text: those of its segments, if it shares any, else its own.

    Args:
        seed: the seed of the workload.
        request: its prompt is None.
        vocab_size: V; ids are below it.
        excluded_ids: never drawn, such as end-of-sequence ids.
    """
    if request.segments is not None:
        return segment_token_ids(seed, request.segments, vocab_size, excluded_ids)
    return synthetic_token_ids(
        seed, request.request_id, request.prompt_tokens or 0, vocab_size, excluded_ids
    )


def tokenise_workload(
    workload: Workload,
    tokenizer: Encoder,
    *,
    vocab_size: int,
    excluded_ids: Sequence[int] = (),
) -> Workload:
    """The same workload with token ids for prompts and all prompt lengths known."""

    def tokenised(request: WorkloadRequest) -> WorkloadRequest:
        prompt = request.prompt
        ids: tuple[int, ...]
        if prompt is None:
            ids = made_up_token_ids(workload.seed, request, vocab_size, excluded_ids)
        elif isinstance(prompt, str):
            ids = tuple(tokenizer.encode(prompt))
        elif is_token_ids(prompt):
            ids = prompt
        else:
            ids = tuple(tokenizer.encode_chat(cast(tuple[Message, ...], prompt)))
        return replace(request, prompt=ids, prompt_tokens=len(ids))

    return replace(workload, requests=tuple(map(tokenised, workload.requests)))
