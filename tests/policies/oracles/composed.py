"""Composed policies in plain Python: one frame, four rules by name.

Written from the description of the parts: running requests in turn, victims one by one when blocks
lack, then the queue in the order wanted until the first that may not.
"""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class Composed(Scheduler):
    """The rules by name, and their numbers."""

    order: str = "arrival"
    admit: str = "whole_prompt_fits"
    chunk: str = "fcfs_chunks"
    victim: str = "last_admitted"
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    watermark: float = 0.0
    threshold: int = 0
    iteration: int = -1
    queued: dict[int, int] = field(default_factory=dict)  # iteration of entry into the queue
    left: int = 0
    held: dict[int, int] = field(default_factory=dict)  # blocks before this iteration

    def schedule(self) -> dict:
        self.iteration += 1
        for sequence in self.queue:
            self.queued.setdefault(sequence.id, self.iteration)
        self.left = self.max_num_batched_tokens
        self.held = {sequence.id: sequence.blocks for sequence in self.running}
        victims: list[Sequence] = []
        for sequence in list(self.running):
            if self.left == 0:
                break
            if sequence in victims:
                continue
            wanted = self._chunk(sequence.tokens - sequence.computed, self.max_num_batched_tokens)
            tokens = min(wanted, self.left)
            lacking = max(self.blocks_of(sequence.computed + tokens) - sequence.blocks, 0)
            while lacking > self.free and sequence not in victims:
                victims.append(self._take_away())
            if sequence in victims:
                break
            self.take(sequence, lacking)
            self.run(sequence, tokens)
            self.left -= tokens
        new: list[Sequence] = []
        resumed: list[Sequence] = []
        limited_by = "preempting" if victims else self._admissions(self.left, new, resumed)
        return self.decided(new=new, resumed=resumed, preempted=victims, limited_by=limited_by)

    def _take_away(self) -> Sequence:
        """The next victim goes back to its place in the queue; a turn that it had is undone."""
        key = {
            "last_admitted": lambda one: self.running.index(one),
            "fewest_outputs": lambda one: (-one.outputs, one.id),
            "lowest_priority": lambda one: (one.priority, one.id),
            "longest_prompt": lambda one: (one.prompt, one.id),
            "most_blocks": lambda one: (self.held[one.id], one.id),
        }[self.victim]
        victim = max(self.running, key=key)
        self.left += sum(tokens for one, tokens in self.scheduled if one is victim)
        self.scheduled = [pair for pair in self.scheduled if pair[0] is not victim]
        self.running.remove(victim)
        self.drop(victim)
        victim.computed = 0
        self.queued[victim.id] = self.iteration
        self.queue = sorted([*self.queue, victim], key=lambda one: one.id)
        return victim

    def _chunk(self, pending: int, left: int) -> int:
        if self.chunk == "whole_prompts":
            return pending if pending <= left else 0
        most = self.threshold if self.chunk == "capped" else pending
        return min(pending, most, left)

    def _admissions(self, left: int, new: list[Sequence], resumed: list[Sequence]) -> str:
        key = {
            "arrival": lambda one: 0,
            "shortest_prompt_first": lambda one: one.prompt,
            "shortest_answer_first": lambda one: one.max_tokens,
            "priority": lambda one: one.priority,
            "longest_waiting": lambda one: self.queued[one.id],
        }[self.order]
        for head in sorted(self.queue, key=key):
            tokens = self._chunk(head.tokens, left)
            if len(self.running) == self.max_num_seqs:
                return "seats"
            if tokens == 0:
                return "budget"
            limited_by, owned = self._admit(head, tokens)
            if limited_by:
                return limited_by
            self.queue.remove(head)
            self.running.append(head)
            (resumed if head.ran_before else new).append(head)
            head.ran_before = True
            self.take(head, self.blocks_of(owned))
            self.run(head, tokens)
            left -= tokens
        return "queue_empty"

    def _admit(self, head: Sequence, tokens: int) -> tuple[str, int]:
        owned, kept = tokens, 0
        must_fit = {
            "first_chunk_fits": tokens,
            "whole_prompt_fits": head.tokens,
            "reserves_output": head.prompt + head.max_tokens - 1,
        }[self.admit]
        if self.admit == "reserves_output":
            owned = must_fit
        if self.admit == "whole_prompt_fits" and self.running:
            kept = int(np.float32(self.watermark) * np.float32(self.num_blocks))
        if self.blocks_of(must_fit) > self.free:
            return "blocks", owned
        if self.blocks_of(must_fit) + kept > self.free:
            return "watermark", owned
        return "", owned


# A program is compiled for each; every part is in one of them.
TOGETHER = [
    ("shortest_prompt_first", "whole_prompt_fits", "fcfs_chunks", "last_admitted"),
    ("priority", "first_chunk_fits", "capped", "lowest_priority"),
    ("longest_waiting", "first_chunk_fits", "fcfs_chunks", "fewest_outputs"),
    ("longest_waiting", "whole_prompt_fits", "whole_prompts", "lowest_priority"),
    ("priority", "reserves_output", "capped", "none"),
    ("shortest_answer_first", "whole_prompt_fits", "fcfs_chunks", "longest_prompt"),
    ("arrival", "first_chunk_fits", "fcfs_chunks", "most_blocks"),
]


@st.composite
def cases(draw):
    """Any parts that go together; no more requests than rows where the order is not arrival."""
    # Here, because what draws cases for all systems knows their oracles.
    from tests.policies import beside

    numbers = draw(beside.systems())
    seats = draw(st.sampled_from([1, 3, 4, 5, 6]))
    knobs = dict(
        zip(("order", "admit", "chunk", "victim"), draw(st.sampled_from(TOGETHER)), strict=True),
        max_num_seqs=seats,
    )
    least = numbers[2] if knobs["chunk"] == "whole_prompts" else seats
    knobs["max_num_batched_tokens"] = draw(st.integers(least, 64))
    if knobs["chunk"] == "capped":
        knobs["threshold"] = draw(st.sampled_from([1, 3, 7, 16]))
    if knobs["admit"] == "whole_prompt_fits":
        knobs["watermark"] = draw(st.sampled_from([0.0, 0.0, 0.05, 0.2]))
    # A policy that sorts is exact while nobody waits behind the window.
    workload = draw(beside.workloads(numbers[0], numbers[2], beside.LIMITS.rows))
    return beside.Case("composed", knobs, *numbers, workload)
