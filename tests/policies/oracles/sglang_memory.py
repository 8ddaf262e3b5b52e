"""The memory side of the SGLang oracle: pages of each request, and the radix tree beside them."""

from dataclasses import dataclass

from cbjax.parity.workload import output_token
from tests.policies.oracles.common import Scheduler, Sequence
from tests.policies.oracles.radix import Node, RadixTree


@dataclass(eq=False)
class Member(Sequence):
    """A request; `outputs` are those whose results were processed, `computed` tokens have KV."""

    place: int = 0  # order of entry into the queue, renewed by a retraction
    ids: list[int] | None = None  # prompt token ids, with the radix cache on
    prefix: int = 0  # tokens that need no computing in this round
    cached: int = 0  # of these, tokens that lie in the tree
    target: int = 0  # tokens with KV after this round
    node: Node | None = None
    partial: bool = False  # its last round did not finish its prefill
    launched: int = 0  # outputs computed so far, processed or not
    emitted: int = 0  # the most outputs that were ever computed
    ended: bool = False  # its last output was computed
    over: bool = False  # and that was seen
    retracted: bool = False

    @property
    def extend(self) -> int:
        return self.target - self.prefix


@dataclass
class Memory(Scheduler):
    """Pages are taken and given back; with a tree, finished prefixes stay until evicted."""

    disable_radix_cache: bool = True
    tree: RadixTree | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.disable_radix_cache:
            self.tree = RadixTree(self.block_size)

    @property
    def available(self) -> int:
        """Free tokens, and those that could be evicted."""
        return self.free * self.block_size + (self.tree.unlocked if self.tree else 0)

    def whole_pages(self, tokens: int) -> int:
        return self.blocks_of(tokens) * self.block_size

    def text(self, member: Member, length: int) -> list[int]:
        made = [output_token(member.id, k) for k in range(length - len(member.ids))]
        return (member.ids + made)[:length]

    def evict_for(self, tokens: int) -> None:
        # The whole need, not the shortfall.
        if self.tree and self.free * self.block_size < tokens:
            self.free += self.tree.evict(tokens) // self.block_size

    def match(self, member: Member) -> None:
        """Its tokens to compute, behind the prefix that the tree has; one is left to compute."""
        member.target = member.tokens
        if self.tree:
            member.node, member.cached = self.tree.match(self.text(member, member.tokens - 1))
        member.prefix = member.cached

    def lock(self, member: Member) -> None:
        if self.tree:
            self.tree.lock(member.node)
            member.computed = member.cached

    def grow(self, member: Member, tokens: int) -> None:
        pages = self.blocks_of(tokens) - self.blocks_of(member.computed)
        assert pages <= self.free, "out of memory"
        self.free -= pages
        member.computed = tokens

    def keep_prefix(self, member: Member, length: int) -> None:
        """What a round computed goes into the tree, and stays locked."""
        if self.tree:
            self._insert(member, length)
            node, member.cached = self.tree.match(self.text(member, length))
            self.tree.unlock(member.node)
            self.tree.lock(node)
            member.node = node
        member.prefix = length

    def release(self, member: Member, insert: bool) -> None:
        """Everything it holds goes back; with `insert`, whole pages stay in the tree."""
        pages = self.blocks_of(member.computed)
        if self.tree:
            if insert:
                self._insert(member, member.computed)
                self.free += pages - member.computed // self.block_size
            else:
                self.free += pages - member.cached // self.block_size
            self.tree.unlock(member.node)
        else:
            self.free += pages
        member.computed = member.prefix = member.cached = 0
        member.partial = False

    def lend(self, member: Member) -> None:
        """Count what it holds as if it were given back."""
        self.free += self.blocks_of(member.computed) - member.cached // self.block_size
        if self.tree:
            self.tree.unlock(member.node)

    def take_back(self, member: Member) -> None:
        """The opposite."""
        self.free -= self.blocks_of(member.computed) - member.cached // self.block_size
        if self.tree:
            self.tree.lock(member.node)

    def _insert(self, member: Member, length: int) -> None:
        """Pages that the tree has already are given back."""
        had = self.tree.insert(self.text(member, length))
        self.free += max(had - member.cached, 0) // self.block_size
