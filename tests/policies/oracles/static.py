"""Static batching in plain Python: a batch is formed when nothing runs and ends as a whole.

Written from the description: up to `max_batch_size` oldest requests whose KV fits, prompts first
(each whole, over as many iterations as their tokens need), then one token of each per iteration.
"""

from dataclasses import dataclass

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class Static(Scheduler):
    """Knobs, and the batch that runs."""

    max_batch_size: int = 8
    padding: str = "padded"
    reservation: str = "oracle"
    size: int = 0
    longest: int = 0

    reserves_output = True
    whole_prompts = True

    def schedule(self) -> dict:
        new, limited_by = [], "batch_running" if self.queue else "queue_empty"
        if not self.running:
            new, limited_by = self._form()
        pending = [sequence for sequence in self.running if sequence.computed == 0]
        extra = 0
        if pending:
            extra = self._prefill(pending)
        else:
            for sequence in self.running:
                self.run(sequence, 1)
            if self.padding == "padded":
                extra = self.size - len(self.running)
        return self.decided(new=new, limited_by=limited_by, extra_tokens=extra)

    def _form(self) -> tuple[list[Sequence], str]:
        batch: list[Sequence] = []
        limited_by = "queue_empty"
        for head in self.queue:
            # One token of each must fit an iteration.
            if len(batch) == min(self.max_batch_size, self.iteration_tokens):
                limited_by = "seats"
                break
            if sum(self._owned([*batch, head])) > self.free:
                limited_by = "blocks"
                break
            batch.append(head)
        for sequence, blocks in zip(batch, self._owned(batch), strict=True):
            self.queue.remove(sequence)
            self.running.append(sequence)
            self.take(sequence, blocks)
        self.size = len(batch)
        self.longest = max((sequence.prompt for sequence in batch), default=0)
        return batch, limited_by

    def _owned(self, batch: list[Sequence]) -> list[int]:
        """Blocks that each member of the batch owns from the start."""
        if self.padding == "ragged":
            slots = [self.slots(member.prompt, member.max_tokens) for member in batch]
            return [self.blocks_of(each) for each in slots]
        longest = max((member.prompt for member in batch), default=0)
        output = max((member.max_tokens for member in batch), default=0)
        return [self.blocks_of(self.slots(longest, output))] * len(batch)

    def _prefill(self, pending: list[Sequence]) -> int:
        """Prompts of this iteration; returns the padding beside them."""
        used = extra = 0
        for sequence in pending:
            cost = self.longest if self.padding == "padded" else sequence.prompt
            if used + cost > self.iteration_tokens:
                break
            used += cost
            extra += cost - sequence.prompt
            self.run(sequence, sequence.prompt)
        return extra
