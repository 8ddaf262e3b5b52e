"""Workloads from classes of requests, or straight from a list of prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from cbjax.workload.arrivals import Arrivals, arrival_times
from cbjax.workload.checks import require
from cbjax.workload.lengths import draw_lengths
from cbjax.workload.mix import RequestClass, assign_classes
from cbjax.workload.records import Prompt, Workload, WorkloadRequest, is_token_ids
from cbjax.workload.streams import Stream, generator

_ALL_AT_ONCE = Arrivals("all_at_once")


def make_workload(
    classes: Sequence[RequestClass],
    num_requests: int,
    *,
    arrivals: Arrivals = _ALL_AT_ONCE,
    seed: int = 0,
) -> Workload:
    """Mix requests of several classes; the same arguments always give the same workload.

    A class's prompts are used in seeded order, each once before any is used again. A class draws
    from streams of its own, so that the lengths of one do not depend on those of another.

    Args:
        classes: at least one, of different names.
        num_requests: R.
        arrivals: the arrival process.
        seed: everything random follows from it.

    Raises:
        ValueError: no requests, no share above 0, or two classes of one name.
    """
    _require_requests(num_requests)
    names = [kind.name for kind in classes]
    require(len(set(names)) == len(names), "class.name", names, "give each a name of its own")
    chosen = assign_classes([kind.share for kind in classes], num_requests, seed)
    contents = [
        _contents(kind, chosen.count(index), seed, index)
        for index, kind in enumerate(classes)
    ]
    blanks = [next(contents[index]) for index in chosen]
    return _scheduled(blanks, arrivals, seed)


def workload_from_prompts(
    prompts: Sequence[Prompt],
    *,
    num_requests: int | None = None,
    max_tokens: int | None = None,
    arrivals: Arrivals = _ALL_AT_ONCE,
    seed: int = 0,
) -> Workload:
    """Send prompts in the order given, each under its own class name.

    Args:
        prompts: at least one.
        num_requests: None sends each once; more than there are begin again at the first.
        max_tokens: bound on the output of prompts that bring none along.
        arrivals: the arrival process.
        seed: of arrivals and sampling.

    Raises:
        ValueError: no prompts, no requests, or no output allowed.
    """
    require(prompts, "prompts", prompts, "give at least one prompt")
    num_requests = len(prompts) if num_requests is None else num_requests
    _require_requests(num_requests)
    require(max_tokens is None or max_tokens >= 1, "max_tokens", max_tokens,
            "use at least 1, or leave it out to allow as many as fit")
    used = (prompts[index % len(prompts)] for index in range(num_requests))
    blanks = [_blank(prompt.class_name, prompt, prompt.max_tokens or max_tokens) for prompt in used]
    return _scheduled(blanks, arrivals, seed)


def _require_requests(num_requests: int) -> None:
    require(num_requests >= 1, "num_requests", num_requests, "use at least 1")


def _blank(
    class_name: str, prompt: Prompt, max_tokens: int | None, priority: int = 0,
    ignore_eos: bool = False,
) -> WorkloadRequest:
    """A request with a real prompt that has no place in time yet."""
    content = prompt.content
    length = len(content) if is_token_ids(content) else None
    return WorkloadRequest(
        request_id=-1, class_name=class_name, priority=priority, scheduled_arrival_s=None,
        prompt=content, prompt_tokens=length, max_tokens=max_tokens,
        ignore_eos=ignore_eos, seed=0,
    )


def _contents(kind: RequestClass, count: int, seed: int, index: int) -> Iterator[WorkloadRequest]:
    """`count` requests of one class that have no place in time yet."""
    outputs: Sequence[int | None] = [None] * count
    if kind.output_lengths is not None:
        rng = generator(seed, Stream.OUTPUT_LENGTHS, index)
        outputs = draw_lengths(kind.output_lengths, count, rng)
    if kind.prompts is not None:
        rng = generator(seed, Stream.PROMPT_CHOICE, index)
        rounds = -(-count // len(kind.prompts))
        order = [place for _ in range(rounds) for place in rng.permutation(len(kind.prompts))]
        for place, most in zip(order, outputs, strict=False):
            prompt = kind.prompts[place]
            yield _blank(kind.name, prompt, prompt.max_tokens if most is None else most,
                         kind.priority, bool(kind.ignore_eos))
    elif kind.prompt_lengths is not None:
        rng = generator(seed, Stream.PROMPT_LENGTHS, index)
        lengths = draw_lengths(kind.prompt_lengths, count, rng)
        for tokens, most in zip(lengths, outputs, strict=True):
            yield WorkloadRequest(
                request_id=-1, class_name=kind.name, priority=kind.priority,
                scheduled_arrival_s=None, prompt=None, prompt_tokens=tokens, max_tokens=most,
                ignore_eos=kind.ignore_eos is not False, seed=0,
            )


def _scheduled(blanks: Sequence[WorkloadRequest], arrivals: Arrivals, seed: int) -> Workload:
    """Number the requests, and give each its arrival time and its sampling seed."""
    times = arrival_times(arrivals, len(blanks), seed)
    seeds = generator(seed, Stream.SAMPLING).integers(0, 2**32, len(blanks), np.uint32).tolist()
    requests = tuple(
        replace(blank, request_id=place, scheduled_arrival_s=time, seed=own)
        for place, (blank, time, own) in enumerate(zip(blanks, times, seeds, strict=True))
    )
    return Workload(requests, arrivals, seed)
