"""A radix tree over token ids in plain Python: which prefixes are cached, who locks them, who goes.

Only lengths are kept, no KV places: every token of the tree is one token of the pool.
"""

from dataclasses import dataclass, field
from itertools import count


@dataclass(eq=False)
class Node:
    """A run of tokens below its parent."""

    key: tuple[int, ...]
    parent: "Node | None"
    used: int
    locks: int = 0
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)


class RadixTree:
    """Runs of whole pages; a node in use locks its path to the root."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.clock = count(1)
        self.root = Node((), None, 0, locks=1)
        self.unlocked = 0  # tokens that may be evicted

    def match(self, tokens: list[int]) -> tuple[Node, int]:
        """The deepest node that holds a prefix of the tokens, and the prefix's length."""
        node, length, _ = self._walk(self._whole_pages(tokens))
        return node, length

    def insert(self, tokens: list[int]) -> int:
        """Add the tokens; returns how many of them the tree had already."""
        tokens = self._whole_pages(tokens)
        node, had, rest = self._walk(tokens)
        if rest:
            node.children[rest[: self.page]] = Node(rest, node, next(self.clock))
            self.unlocked += len(rest)
        return had

    def lock(self, node: Node) -> None:
        """Protect the node and all above it."""
        while node is not self.root:
            if node.locks == 0:
                self.unlocked -= len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Take one protection away from the node and all above it."""
        while node is not self.root:
            node.locks -= 1
            if node.locks == 0:
                self.unlocked += len(node.key)
            node = node.parent

    def unlocked_above(self, node: Node) -> int:
        """Tokens that locking the node would take out of `unlocked`."""
        tokens = 0
        while node is not self.root:
            tokens += len(node.key) if node.locks == 0 else 0
            node = node.parent
        return tokens

    def evict(self, tokens: int) -> int:
        """Remove least recently used leaves until that many tokens are free; returns how many."""
        evicted = 0
        leaves = {node for node in self._nodes() if not node.children and node.locks == 0}
        while evicted < tokens and leaves:
            leaf = min(leaves, key=lambda node: node.used)
            leaves.remove(leaf)
            evicted += len(leaf.key)
            parent = leaf.parent
            del parent.children[leaf.key[: self.page]]
            if not parent.children and parent.locks == 0:
                leaves.add(parent)
        self.unlocked -= evicted
        return evicted

    def _whole_pages(self, tokens: list[int]) -> tuple[int, ...]:
        return tuple(tokens[: len(tokens) // self.page * self.page])

    def _walk(self, tokens: tuple[int, ...]) -> tuple[Node, int, tuple[int, ...]]:
        """Follow the tokens down, stamping what is passed and splitting where they part."""
        node, length = self.root, 0
        while tokens and tokens[: self.page] in node.children:
            node = node.children[tokens[: self.page]]
            node.used = next(self.clock)
            same = self._common(node.key, tokens)
            length, tokens = length + same, tokens[same:]
            if same < len(node.key):
                return self._split(node, same), length, tokens
        return node, length, tokens

    def _common(self, key: tuple[int, ...], tokens: tuple[int, ...]) -> int:
        same = 0
        for mine, other in zip(key, tokens, strict=False):
            if mine != other:
                break
            same += 1
        return same // self.page * self.page

    def _split(self, node: Node, at: int) -> Node:
        """A new node for the first `at` tokens, above the rest of the old one."""
        above = Node(node.key[:at], node.parent, next(self.clock), locks=node.locks)
        node.parent.children[node.key[: self.page]] = above
        node.key = node.key[at:]
        node.parent = above
        above.children[node.key[: self.page]] = node
        return above

    def _nodes(self) -> list[Node]:
        found, stack = [], [self.root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node is not self.root:
                found.append(node)
        return found
