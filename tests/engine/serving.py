"""What the engine tests share: a fixed set of requests, and serving it to the end."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from cbjax.core.ladder import Ladder, Rung
from cbjax.engine import Engine
from cbjax.models import LoadedModel, load_model


@dataclass(frozen=True)
class Ask:
    """One request of the fixed set."""

    prompt: tuple[int, ...]
    settings: dict


def mixed_requests(count: int, vocab_size: int, longest_prompt: int, most_output: int, seed: int):
    """Requests of mixed length, half greedy and half sampled, each with a seed of its own."""
    random = np.random.default_rng(seed)
    requests = []
    for index in range(count):
        length = int(np.clip(random.lognormal(np.log(longest_prompt / 4), 0.8), 1, longest_prompt))
        prompt = tuple(int(token) for token in random.integers(0, vocab_size, length))
        settings = dict(max_tokens=int(random.integers(1, most_output + 1)), ignore_eos=True)
        if index % 2:
            settings |= dict(temperature=0.8, seed=1000 + index)
        requests.append(Ask(prompt, settings))
    return requests


@dataclass(frozen=True)
class Served:
    """Tokens of each request in order, and what happened on the way."""

    tokens: list[tuple[int, ...]]
    preemptions: int
    iterations: int
    cached: int  # prompt tokens that were found computed


def serve_all(
    engine: Engine, requests: list[Ask], *, at_once: int | None = None,
    after_step: Callable[[int], None] = lambda iteration: None,
) -> Served:
    """Serve requests, at most `at_once` in the system at a time, and collect their tokens."""
    tokens: dict[int, list[int]] = {}
    waiting = list(enumerate(requests))
    preemptions = iterations = cached = 0
    while waiting or engine.alive:
        while waiting and (at_once is None or engine.alive < at_once):
            index, ask = waiting.pop(0)
            tokens[engine.submit(ask.prompt, request_id=index, **ask.settings)] = []
        turn, outputs = engine.turn()
        preemptions += int(turn.step.plan.preempted.sum())
        if turn.step.plan.cached is not None:
            cached += int(turn.step.plan.cached.sum())
        iterations += 1
        for output in outputs:
            assert output.error is None, output.error
            tokens[output.request_id] += output.token_ids
        after_step(iterations)
    in_order = [tuple(tokens[index]) for index in range(len(requests))]
    return Served(in_order, preemptions, iterations, cached)


def small_ladder(tokens: int, seats: int) -> Ladder:
    """Two rungs: as few compilations as a mixed batch allows."""
    return Ladder(tuple(sorted({Rung(seats, seats), Rung(tokens, seats)})))


def smollm2_or_skip() -> LoadedModel:
    """SmolLM2, or a skip that says why it cannot be had here."""
    try:
        return load_model("smollm2")
    except ValueError as problem:
        pytest.skip(f"SmolLM2 is not to be had: {problem}")
