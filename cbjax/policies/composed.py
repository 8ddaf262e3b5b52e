"""A policy put together from named parts: an order, an admission rule, chunks and a victim rule.

The frame is that of `cbjax.core.compose`: running requests first under one token budget, victims if
blocks run out, then the queue until the first that may not start. Each part is a function of
`cbjax.core.parts`, so that one rule can be changed while all others stay as they are.
"""

from collections.abc import Mapping

from cbjax.core import parts
from cbjax.core.compose import compose
from cbjax.core.parts import Part
from cbjax.core.policy import Policy


def composed(
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    order: str = "arrival",
    admit: str = "whole_prompt_fits",
    chunk: str = "fcfs_chunks",
    victim: str = "last_admitted",
    watermark: float = 0.0,
    threshold: int = 512,
) -> Policy:
    """The parts by name; with the defaults it decides as vLLM V1 does.

    Args:
        max_num_batched_tokens: token budget of an iteration, decodes included.
        max_num_seqs: seats.
        order: who is next in line: "arrival", "shortest_prompt_first", "shortest_answer_first",
            "priority", "longest_waiting".
        admit: what must be free: "first_chunk_fits", "whole_prompt_fits", "reserves_output".
        chunk: what an iteration takes of a prompt: "fcfs_chunks", "whole_prompts", "capped".
        victim: who makes room: "last_admitted", "fewest_outputs", "longest_prompt", "most_blocks",
            "lowest_priority", "none".
        watermark: share of the blocks that "whole_prompt_fits" keeps free while others run.
        threshold: most tokens of a request in an iteration, for "capped".

    Raises:
        ValueError: an unknown part, a number out of range, or parts that do not fit together.

    Source: the rules apart, as in PagedAttention (SOSP 2023), section 4.5, and Sarathi-Serve (OSDI
        2024); the composition is this project's.
    """
    return compose(
        order=_choice("order", order, {
            "arrival": parts.arrival,
            "shortest_prompt_first": parts.shortest_prompt_first,
            "shortest_answer_first": parts.shortest_answer_first,
            "priority": parts.priority,
            "longest_waiting": parts.longest_waiting,
        }),
        admit=_choice("admit", admit, {
            "first_chunk_fits": parts.first_chunk_fits,
            "whole_prompt_fits": parts.whole_prompt_fits(watermark),
            "reserves_output": parts.reserves_output,
        }),
        chunk=_choice("chunk", chunk, {
            "fcfs_chunks": parts.fcfs_chunks,
            "whole_prompts": parts.whole_prompts,
            "capped": parts.capped(threshold),
        }),
        victim=_choice("victim", victim, {
            "last_admitted": parts.last_admitted,
            "fewest_outputs": parts.fewest_outputs,
            "longest_prompt": parts.longest_prompt,
            "most_blocks": parts.most_blocks,
            "lowest_priority": parts.lowest_priority,
            "none": parts.none,
        }),
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
    )


def _choice(knob: str, name: str, known: Mapping[str, Part]) -> Part:
    if name not in known:
        raise ValueError(f"{knob} = {name!r}: choose one of {list(known)}")
    return known[name]
