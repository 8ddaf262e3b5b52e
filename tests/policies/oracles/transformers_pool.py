"""The blocks of transformers' cache, in plain Python: by identity, found again by content."""

from dataclasses import dataclass, field

from cbjax.parity.workload import output_token
from tests.policies.oracles.common import Scheduler, Sequence


@dataclass(eq=False)
class Block:
    """A block of the pool; `key` names all tokens up to its end, once it is registered."""

    key: tuple | None = None
    holders: int = 0


@dataclass(eq=False)
class Job(Sequence):
    """A request with its blocks and its text."""

    table: list[Block] = field(default_factory=list)
    registered: int = 0  # leading blocks that are known by content
    decoding: bool = False
    stored: int = 0  # blocks in the host pool
    in_flight: int = 0  # tokens that the step before this one will bring
    delivered: int = 0  # outputs that its client has
    over: bool = False
    token_ids: tuple[int, ...] = ()  # of the prompt; without any, it is like no other

    def content(self, tokens: int) -> tuple:
        """The first tokens."""
        prompt = self.token_ids or tuple((self.id, place) for place in range(self.prompt))
        outputs = tuple(output_token(self.id, place) for place in range(tokens - self.prompt))
        return (prompt + outputs)[:tokens]


@dataclass
class Pool(Scheduler):
    """Free blocks, and those that nobody holds but that may be found by content."""

    allow_block_sharing: bool = False
    cached: list[Block] = field(default_factory=list)
    by_content: dict[tuple, Block] = field(default_factory=dict)

    def extend(self, job: Job, tokens: int) -> bool:
        """Blocks for that many positions, or nothing at all."""
        lacking = self.blocks_of(tokens) - len(job.table)
        if lacking > self.free:
            return False
        for _ in range(lacking):
            job.table.append(Block(holders=1))
            self.free -= 1
        return True

    def give_back(self, job: Job, keep: bool) -> None:
        """Release all blocks; those known by content stay findable if `keep`."""
        for block in job.table:
            block.holders -= 1
            if block.holders:
                continue
            if block.key is not None and keep:
                self.cached.append(block)
            else:
                self.forget(block)
        job.table, job.registered = [], 0

    def forget(self, block: Block) -> None:
        if block.key is not None:
            del self.by_content[block.key]
            block.key = None
        self.free += 1

    def evict(self) -> bool:
        """Drop every block that is findable and that nobody holds."""
        dropped = bool(self.cached)
        for block in self.cached:
            self.forget(block)
        self.cached = []
        return dropped

    def hold(self, block: Block) -> None:
        if not block.holders:
            self.cached.remove(block)
        block.holders += 1

    def register(self, job: Job, count: int) -> None:
        """The next blocks become findable; one whose content is there already is shared instead."""
        for _ in range(count):
            index = job.registered
            key = job.content((index + 1) * self.block_size)
            known = self.by_content.get(key)
            own = job.table[index]
            if known is None:
                own.key = key
                self.by_content[key] = own
            elif known is not own:
                self.hold(known)
                job.table[index] = known
                own.holders -= 1
                assert own.holders == 0
                self.free += 1
            job.registered += 1

    def find(self, job: Job) -> int:
        """Take the longest findable prefix, never the whole; returns its blocks."""
        for index in range((job.tokens - 1) // self.block_size):
            block = self.by_content.get(job.content((index + 1) * self.block_size))
            if block is None:
                break
            self.hold(block)
            job.table.append(block)
            job.registered += 1
        job.computed = len(job.table) * self.block_size
        return len(job.table)
