"""The five schedulers of the Sarathi-Serve repository, on one base.

`sarathi` (stall-free batching): decodes first, then the chunks of unfinished prompts, then new
requests, all within one token budget. The others are its baselines: chunks and decodes in
alternating iterations (`simple_chunking`), whole prompts before decodes (`vllm`, as vLLM V0 did),
whole prompts together with decodes on a reservation (`orca`), and a fixed batch
(`faster_transformer`).
"""

from functools import cache
from inspect import signature

import jax.numpy as jnp
import numpy as np

from cbjax.core.limits import Limits, System
from cbjax.core.policy import Policy, Traits, require_positive
from cbjax.policies._sarathi import MOST_STAGES, Carried, Rules

_DYNAMIC = (
    "low_chunk_size", "high_chunk_size", "chunk_schedule_max_tokens", "chunk_schedule_stages",
)
_COMMON = ("max_num_seqs", "max_model_len")
_READS = {  # which knobs a scheduler reads
    "sarathi": ("chunk_size", "watermark", *_COMMON),
    "simple_chunking": ("chunk_size", "watermark", *_COMMON),
    "vllm": ("max_batched_tokens", "watermark", *_COMMON),
    "orca": _COMMON,
    "faster_transformer": _COMMON,
}


def sarathi(
    scheduler: str = "sarathi",
    chunk_size: int = 512,
    max_num_seqs: int = 128,
    max_batched_tokens: int = 0,
    max_model_len: int = 0,
    enable_dynamic_chunking_schedule: bool = False,
    low_chunk_size: int = 0,
    high_chunk_size: int = 0,
    chunk_schedule_max_tokens: int = 0,
    chunk_schedule_stages: int = 0,
    watermark: float = 0.01,
    faithful: bool = False,
) -> Policy:
    """Sarathi-Serve's scheduler or one of its baselines, with its own knobs, names and defaults.

    By default sound. The original has faults that show in ordinary traffic; `faithful` brings all
    of them back, to replay what it decided:

    * `max_tokens` starts again at every preemption, so that a request may generate more.
    * A request preempted in the middle of its prompt returns in the same iteration with a chunk
      counted from its old progress, and is often evicted again. By default an iteration that
      preempts admits nobody, which is what the original does after preempting a decode.
    * A decode that is alone and finds no free block preempts itself even if it needs none, and is
      not reset: `sarathi` and `simple_chunking` then hang, `vllm` decodes on without its KV (here
      the KV is kept in the host pool meanwhile). By default it goes on.
    * A request that grew beyond the longest prompt is dropped when it is to be computed again. By
      default `vllm` computes one that exceeds the budget in pieces.
    * Nobody is let in below the watermark even if nothing runs, so a long prompt waits for ever.
    * `orca` and `faster_transformer` reserve `max_model_len` tokens but let a request grow beyond.
    * A decode turn of `simple_chunking` without decodes is an empty iteration; `vllm` and
      `simple_chunking` compute no decode in an iteration that turns a request away.

    Args:
        scheduler: "sarathi", "simple_chunking", "vllm", "orca" or "faster_transformer".
        chunk_size: token budget of an iteration, decodes included; decodes are never held back.
        max_num_seqs: seats.
        max_batched_tokens: of "vllm": most prompt tokens of an iteration; 0 = `max_model_len`.
        max_model_len: longest prompt, and the reservation of "orca" and "faster_transformer";
            0 = the system's longest sequence.
        enable_dynamic_chunking_schedule: of "sarathi": the budget falls with the progress of the
            prompt at hand, in stages, from the high to the low chunk size.
        low_chunk_size: the last stage's budget, a multiple of 32.
        high_chunk_size: the first stage's budget, a multiple of 32.
        chunk_schedule_max_tokens: prompt tokens over which the stages extend.
        chunk_schedule_stages: how many stages.
        watermark: share of the blocks that must stay free when a request is admitted while others
            run.
        faithful: decide as the original does, faults included. Needs a host pool as large as the
            device's.

    Raises:
        ValueError: a knob is out of range, or is given although the scheduler does not read it.

    Source: Sarathi-Serve (OSDI 2024), repository `microsoft/sarathi-serve` at 96f9911
    (2026-01-08), `sarathi/core/scheduler/`, one pipeline stage; recorded decisions of that commit.
    """
    given = dict(locals())
    if scheduler not in _READS:
        raise ValueError(f"scheduler = {scheduler!r}: choose one of {list(_READS)}")
    dynamic = enable_dynamic_chunking_schedule and scheduler == "sarathi"
    reads = set(_READS[scheduler]) | ({*_DYNAMIC} if dynamic else set())
    if dynamic:
        reads -= {"chunk_size"}
    _refuse_unread(given, reads, scheduler)
    knobs = {name: given[name] for name in given if name in reads}
    _check(knobs)
    rules = _rules(scheduler, dynamic, faithful)
    budget = "high_chunk_size" if dynamic else "chunk_size"
    if scheduler == "vllm" and max_batched_tokens:
        budget = "max_batched_tokens"
    return Policy(
        knobs=knobs, name="sarathi", init=_init if not faithful else _init_faithful, decide=rules,
        steady=None if faithful else rules.steady,
        advance=rules.advance if scheduler == "simple_chunking" else None,
        seats="max_num_seqs", budget=budget if budget in knobs else None,
        traits=Traits(
            whole_prompts=rules.whole_prompts, reserves_output=rules.reserves,
            restarts_outputs=faithful,
        ),
    )


# Methods of one object are equal, those of two equal objects are not: a policy built twice is one.
_rules = cache(Rules)


def _refuse_unread(given: dict, reads: set[str], scheduler: str) -> None:
    """A knob that would silently do nothing is named."""
    structural = {"scheduler", "faithful"} | (
        {"enable_dynamic_chunking_schedule"} if scheduler == "sarathi" else set()
    )
    for name, parameter in signature(sarathi).parameters.items():
        if name not in reads | structural and given[name] != parameter.default:
            raise ValueError(
                f"{name} = {given[name]!r}: scheduler = {scheduler!r} does not read it as it is "
                f"set up; it reads {sorted(reads)}"
            )


def _check(knobs: dict) -> None:
    positive = ("max_num_seqs", "chunk_size", *_DYNAMIC)
    require_positive(**{name: knobs[name] for name in positive if name in knobs})
    for name in ("max_batched_tokens", "max_model_len"):
        value = knobs.get(name, 0)
        if int(value) != value or value < 0:
            raise ValueError(f"{name} = {value!r}: give a number of tokens, or 0 for its default")
    if not 0.0 <= knobs.get("watermark", 0.0) < 1.0:
        raise ValueError(
            f"watermark = {knobs['watermark']}: give a share of the blocks, 0 <= share < 1"
        )
    for name in ("low_chunk_size", "high_chunk_size"):
        if knobs.get(name, 0) % 32:
            raise ValueError(f"{name} = {knobs[name]}: give a multiple of 32")
    if knobs.get("chunk_schedule_stages", 1) > MOST_STAGES:
        raise ValueError(
            f"chunk_schedule_stages = {knobs['chunk_schedule_stages']}: give at most {MOST_STAGES}"
        )


def _init(knobs: dict, limits: Limits, system: System) -> Carried:
    if knobs["max_num_seqs"] > limits.tokens:
        raise ValueError(
            f"max_num_seqs = {knobs['max_num_seqs']} exceeds limits.tokens = {limits.tokens}: one "
            "token of every running request must fit an iteration; raise the limit or lower the "
            "seats"
        )
    chunks = _chunk_sizes(knobs)
    if chunks.max() > limits.tokens:
        raise ValueError(
            f"high_chunk_size = {knobs['high_chunk_size']} gives chunks of {chunks.max()} tokens, "
            f"more than limits.tokens = {limits.tokens}: raise the limit or lower it"
        )
    # On the host, in 64-bit floats, so that the product rounds as the original's does.
    watermark = int(float(knobs.get("watermark", 0.0)) * int(system.num_blocks))
    return Carried(
        watermark=jnp.int32(watermark), chunks=jnp.asarray(chunks), decode_turn=jnp.bool_(False)
    )


def _init_faithful(knobs: dict, limits: Limits, system: System) -> Carried:
    if int(system.swap_blocks) < int(system.num_blocks):
        raise ValueError(
            f"swap_blocks = {int(system.swap_blocks)} is below num_blocks = "
            f"{int(system.num_blocks)} although faithful is on: it keeps the KV of a victim that "
            "is not reset in the host pool; give as many"
        )
    return _init(knobs, limits, system)


def _chunk_sizes(knobs: dict) -> np.ndarray:
    """Chunk size of each stage, the greatest first; the last one repeated behind the last stage."""
    if "chunk_schedule_stages" not in knobs:
        return np.zeros(MOST_STAGES, np.int32)
    low, stages = int(knobs["low_chunk_size"]), int(knobs["chunk_schedule_stages"])
    sizes = np.linspace(low, int(knobs["high_chunk_size"]), stages, dtype=np.int32)[::-1]
    rounded = (np.round(sizes / 32) * 32).astype(np.int32)
    return np.concatenate([rounded, np.full(MOST_STAGES - stages, rounded[-1], np.int32)])
