"""TGI's radix allocator in plain Python: texts of ended prompts, by whole blocks.

A node is the text up to the end of a block. Who holds a node holds all before it. Free blocks are
used first, then the leaf that was given back longest ago makes room.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tests.policies.oracles import tgi
from tests.policies.oracles.common import Sequence
from tests.policies.oracles.sglang_texts import related


@dataclass
class Node:
    """A block that can be found: how many hold it, and when it was last given back."""

    holders: int = 0
    given_back: int = 0


@dataclass(eq=False)
class Job(Sequence):
    """A request with its text, and the nodes it holds."""

    text: tuple = ()
    held: list[tuple] = field(default_factory=list)
    hit: int = 0  # tokens that it found


@dataclass
class TgiCache(tgi.Tgi):
    """`free` counts the blocks of nobody, whether or not they can be found."""

    nodes: dict[tuple, Node] = field(default_factory=dict)
    clock: int = 0
    before: tuple = ()

    def arrive(self, id, prompt, max_tokens, priority=0, token_ids=()):
        word = super().arrive(id, prompt, max_tokens, priority)
        if word is None:
            plain = self.queue.pop()
            text = tuple(token_ids) or tuple((id, place) for place in range(prompt))
            self.queue.append(Job(**vars(plain), text=text))
        return word

    def found(self, job: Job) -> list[tuple]:
        """Its longest known prefix; at least one token is left to compute."""
        keys = []
        for end in range(self.block_size, job.prompt, self.block_size):
            if job.text[:end] not in self.nodes:
                break
            keys.append(job.text[:end])
        return keys

    def pending(self, job: Job) -> int:
        return job.prompt - len(self.found(job)) * self.block_size

    def fits(self, job: Job) -> bool:
        held = sum(self.nodes[key].holders > 0 for key in self.found(job))
        return self._reservation(job) - held <= self.free

    def take(self, job: Job, blocks: int) -> None:
        job.held = self.found(job)
        for key in job.held:
            self.free -= self.nodes[key].holders == 0
            self.nodes[key].holders += 1
        job.computed = job.hit = len(job.held) * self.block_size
        for _ in range(blocks - len(job.held)):
            idle = [key for key, node in self.nodes.items() if not node.holders]
            if len(idle) == self.free:
                leaves = [key for key in idle if not any(
                    len(other) == len(key) + self.block_size and other[: len(key)] == key
                    for other in self.nodes
                )]
                del self.nodes[min(leaves, key=lambda key: self.nodes[key].given_back)]
            self.free -= 1
        job.blocks = blocks

    def put_back(self, sequences: list[Job]) -> None:
        """What can be found is what could be found before."""
        self.nodes, self.free = self.before
        for job in sequences:
            job.blocks, job.held, job.computed = 0, [], 0

    def schedule(self) -> dict:
        decided = super().schedule()
        new = [job for job, _ in self.scheduled if job.id in decided["new"]]
        return decided | dict(cached=tuple((job.id, job.hit) for job in new))

    def _next_batch(self, least: int) -> tuple[list[Job], str]:
        self.before = deepcopy(self.nodes), self.free
        return super()._next_batch(least)

    def drop(self, job: Job) -> None:
        """Its prompt can be found from now on, as far as it was computed."""
        if not job.blocks:
            return
        known = min(job.computed, job.prompt)
        keys = [
            job.text[:end] for end in range(self.block_size, known + 1, self.block_size)
        ]
        for key in keys[len(job.held):]:
            node = self.nodes.setdefault(key, Node(holders=-1))
            if node.holders < 0:
                node.holders = 1  # its own block
            else:
                # There already: its own block is free, the other one is used.
                self.free += 1 - (node.holders == 0)
                node.holders += 1
        for key in reversed(keys):
            self.clock += 1
            node = self.nodes[key]
            node.holders -= 1
            if not node.holders:
                node.given_back = self.clock
                self.free += 1
        self.free += job.blocks - len(keys)
        job.blocks, job.held = 0, []

    def abort(self, id: int) -> bool:
        for place in (self.queue, self.running):
            for job in place:
                if job.id == id:
                    place.remove(job)
                    self.drop(job)
                    return True
        return False


def oracle(prefix_caching: bool = False, **knobs) -> tgi.Tgi:
    """The router with its simple allocator or with the radix one."""
    return TgiCache(**knobs) if prefix_caching else tgi.Tgi(**knobs)


@st.composite
def cases(draw):
    """A TGI v3 system with prefix caching, and prompts that begin alike."""
    case = draw(tgi.cases().filter(lambda case: case.knobs["version"] == "v3"))
    workload = draw(related(case.workload, case.max_length))
    return replace(case, knobs=case.knobs | dict(prefix_caching=True), workload=workload)
