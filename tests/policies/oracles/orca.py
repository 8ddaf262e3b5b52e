"""Orca in plain Python: iteration-level scheduling, KV slots reserved at first scheduling.

Written from algorithm 1 of its paper with one pipeline stage: candidates by arrival, stop at the
first that cannot get its slots. An iteration is bounded by the most tokens that it may have.
"""

from dataclasses import dataclass

from tests.policies.oracles.common import Scheduler


@dataclass
class Orca(Scheduler):
    """Its knobs."""

    max_bs: int = 8
    reservation: str = "oracle"

    reserves_output = True
    whole_prompts = True

    def schedule(self) -> dict:
        for sequence in self.running:
            self.run(sequence, 1)
        used = len(self.running)
        new, limited_by = [], "queue_empty"
        while self.queue:
            head = self.queue[0]
            reservation = self.blocks_of(self.slots(head.prompt, head.max_tokens))
            if len(self.running) == self.max_bs:
                limited_by = "seats"
            elif used + head.prompt > self.iteration_tokens:
                limited_by = "budget"
            elif reservation > self.free:
                limited_by = "blocks"
            else:
                self.running.append(self.queue.pop(0))
                self.take(head, reservation)
                self.run(head, head.prompt)
                used += head.prompt
                new.append(head)
                continue
            break
        return self.decided(new=new, limited_by=limited_by)
