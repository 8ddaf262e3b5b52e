"""Composed policies in plain Python: one frame, four rules by name.

Written from the description of the parts: running requests in turn, victims one by one when blocks
lack, then the queue in the order wanted until the first that may not.
"""

from dataclasses import dataclass, field

import numpy as np

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
