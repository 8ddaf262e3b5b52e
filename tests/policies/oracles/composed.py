"""Composed policies in plain Python: one frame, four rules by name.

Written from the description of the parts: running requests first, then the queue in the order
wanted until the first that may not. Victims are found one by one.
"""

from dataclasses import dataclass, field

import numpy as np

from tests.policies.oracles.common import Scheduler, Sequence


def priority_of(id: int) -> int:
    """The priority that the drawn requests bear."""
    return id * 7 % 4


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
    queued: dict[int, int] = field(default_factory=dict)  # entry into the queue

    def schedule(self) -> dict:
        self.iteration += 1
        for sequence in self.queue:
            self.queued.setdefault(sequence.id, self.iteration)
        left = self.max_num_batched_tokens
        shares = []
        for sequence in self.running:
            wanted = self._chunk(sequence.tokens - sequence.computed, self.max_num_batched_tokens)
            shares.append((sequence, min(wanted, left)))
            left -= shares[-1][1]
        lacking = {sequence.id: self._lacking(sequence, tokens) for sequence, tokens in shares}
        victims: list[Sequence] = []
        while sum(lacking[one.id] for one in self.running) > self.free:
            victims.append(self._victim())
            self.running.remove(victims[-1])
            self.drop(victims[-1])
        for sequence, tokens in shares:
            if sequence in victims:
                sequence.computed = 0
                self.queued[sequence.id] = self.iteration
            elif tokens:
                self.take(sequence, lacking[sequence.id])
                self.run(sequence, tokens)
        # Back at the front of the queue in the order in which they ran.
        victims = [sequence for sequence, _ in shares if sequence in victims]
        self.queue[:0] = victims
        new: list[Sequence] = []
        resumed: list[Sequence] = []
        limited_by = "preempting" if victims else self._admissions(left, new, resumed)
        return self.decided(
            new=new, resumed=resumed, preempted=victims[::-1], limited_by=limited_by
        )

    def _lacking(self, sequence: Sequence, tokens: int) -> int:
        if tokens == 0:
            return 0
        return max(self.blocks_of(sequence.computed + tokens) - sequence.blocks, 0)

    def _chunk(self, pending: int, left: int) -> int:
        if self.chunk == "whole_prompts":
            return pending if pending <= left else 0
        most = self.threshold if self.chunk == "capped" else pending
        return min(pending, most, left)

    def _victim(self) -> Sequence:
        if self.victim == "last_admitted":
            return self.running[-1]
        key = {
            "fewest_outputs": lambda one: one.outputs,
            "lowest_priority": lambda one: -priority_of(one.id),
        }[self.victim]
        return min(reversed(self.running), key=key)

    def _admissions(self, left: int, new: list[Sequence], resumed: list[Sequence]) -> str:
        key = {
            "arrival": lambda one: 0,
            "shortest_prompt_first": lambda one: one.prompt,
            "priority": lambda one: priority_of(one.id),
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
