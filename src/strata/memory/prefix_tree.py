"""The prefix tree: what is known of the beginnings of texts, a page of 64 tokens a node.

Host-only: it knows what lies where, and finds the longest usable beginning of a prompt. Moving bytes is its owner's
part. A node without data in any tier does not exist, and neither do nodes below one.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.memory.checkpoint import Checkpoint
from strata.ops import PAGE_CELLS

NO_PAGE = -1
Images = Sequence[tuple[int, bytes]]  # position and digest of what token ids do not tell apart


@dataclass(eq=False)
class Kept:
    """A page's cells, in up to three tiers, and the recurrent state after them where a checkpoint lies."""

    page: int = NO_PAGE  # of the KV pool, which the tree holds
    cells: NDArray[Any] | None = None  # in RAM, u8 [page bytes]
    state: Checkpoint | None = None  # in RAM
    on_disk: bool = False
    state_on_disk: bool = False
    used: int = 0  # when a request last used it, on the tree's clock
    gone: bool = False  # taken out of the tree

    @property
    def has_state(self) -> bool:
        """Whether a sequence with recurrent state can go on from here."""
        return self.state is not None or self.state_on_disk

    @property
    def ram_bytes(self) -> int:
        """Bytes that it takes in RAM besides the pool."""
        return (0 if self.cells is None else self.cells.nbytes) + (
            0 if self.state is None else self.state.nbytes
        )


@dataclass(eq=False)
class End(Kept):
    """Where a turn ended inside a page: its tokens after the node's, fewer than 64."""

    tail: tuple[int, ...] = ()
    position: int = 0
    decoded: bool = True  # decode wrote some of them: a prompt goes on in the step form whatever follows
    digest: bytes = b""


@dataclass(eq=False)
class Node(Kept):
    """One page of tokens after its parent's."""

    parent: "Node | None" = None
    key: bytes = b""
    depth: int = 0  # pages from the beginning, this one included
    digest: bytes = b""  # of all tokens up to its end
    children: dict[bytes, "Node"] = field(default_factory=dict)
    ends: dict[bytes, End] = field(default_factory=dict)
    branched: bool = False  # whether several texts have gone on from it in different ways

    @property
    def position(self) -> int:
        """Tokens up to its end."""
        return self.depth * PAGE_CELLS


Item = tuple[Node, Node | End]  # the node it lies at, and it: a node or an end behind one


@dataclass(frozen=True)
class Match:
    """The longest usable beginning of a prompt: whole pages, perhaps an end behind them; `agreed` tokens are known of
    the prompt in all."""

    path: tuple[Node, ...]
    end: End | None
    position: int
    agreed: int

    @property
    def last(self) -> Node | End | None:
        """What the state is taken from."""
        return self.end or (self.path[-1] if self.path else None)


def page_key(token_ids: Sequence[int] | NDArray[np.int32], images: Images = (), begin: int = 0) -> bytes:
    """What tells a page's 64 tokens, the first at `begin`, from others: their ids, and the images among them."""
    ids = np.asarray(token_ids, np.int32).tobytes()
    inside = [digest for at, digest in images if begin <= at < begin + PAGE_CELLS]
    return ids + b"".join(inside)


def chain(parent: bytes, key: bytes) -> bytes:
    """Digest of a text whose last page or part of one is `key`."""
    return hashlib.sha256(parent + key).digest()[:16]


class PrefixTree:
    """`recurrent`: whether sequences carry state besides pages, so that only checkpoints can be gone on from."""

    def __init__(self, recurrent: bool):
        self.root = Node()
        self._recurrent = recurrent
        self._clock = 0

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def kept(self) -> Iterator[Item]:
        """Every node and end, with the node it lies at."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node is not self.root:
                yield node, node
            for end in node.ends.values():
                yield node, end
            stack += node.children.values()

    def walk(self, token_ids: Sequence[int] | NDArray[np.int32], images: Images = ()) -> list[Node]:
        """Nodes along a text, as far as they exist."""
        node, path = self.root, []
        token_ids = np.asarray(token_ids, np.int32)
        for begin in range(0, len(token_ids) - PAGE_CELLS + 1, PAGE_CELLS):
            child = node.children.get(page_key(token_ids[begin : begin + PAGE_CELLS], images, begin))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def match(self, token_ids: Sequence[int], images: Images = ()) -> Match:
        """What a prompt can begin with; at least its last token is left to compute."""
        path = self.walk(token_ids, images)
        agreed = len(path) * PAGE_CELLS + self._agreed_in_page(path[-1] if path else self.root, token_ids)
        for depth in range(len(path), -1, -1):
            node = path[depth - 1] if depth else self.root
            end = self._end(node, token_ids)
            if end is not None:
                return Match(tuple(path[:depth]), end, end.position, agreed)
            if depth and node.position < len(token_ids) and (node.has_state or not self._recurrent):
                return Match(tuple(path[:depth]), None, node.position, agreed)
        return Match((), None, 0, agreed)

    def _end(self, node: Node, token_ids: Sequence[int]) -> End | None:
        """The longest end that the prompt goes on from. One that was read as a prompt is no beginning of a longer
        block: that takes the chunk form as a whole, as it would without the end."""
        rest = tuple(token_ids[node.position : node.position + PAGE_CELLS])
        longest = None
        for end in node.ends.values():
            fits = end.position < len(token_ids) and end.tail == rest[: len(end.tail)]
            usable = fits and (end.decoded or len(rest) < PAGE_CELLS)
            if (
                usable
                and (end.has_state or not self._recurrent)
                and len(end.tail) > len(longest.tail if longest else ())
            ):
                longest = end
        return longest

    def _agreed_in_page(self, node: Node, token_ids: Sequence[int]) -> int:
        """Tokens after a node that some text has as well."""
        rest = token_ids[node.position : node.position + PAGE_CELLS]
        known = [np.frombuffer(key[: 4 * PAGE_CELLS], np.int32).tolist() for key in node.children]
        known += [list(end.tail) for end in node.ends.values()]
        return max((_common(rest, other) for other in known), default=0)

    def touch(self, path: Sequence[Node], end: End | None = None) -> None:
        """A request uses these."""
        self._clock += 1
        for kept in (*path, *([end] if end else [])):
            kept.used = self._clock

    def extend(self, node: Node, key: bytes) -> Node:
        """The child of a node, made where it is missing."""
        child = node.children.get(key)
        if child is None:
            child = Node(parent=node, key=key, depth=node.depth + 1, digest=chain(node.digest, key))
            node.children[key] = child
            node.branched |= len(node.children) > 1
        child.used = self._clock
        return child

    def put_end(self, node: Node, tail: tuple[int, ...], decoded: bool) -> End:
        """The end at these tokens after a node, made where it is missing."""
        key = np.asarray(tail, np.int32).tobytes()
        end = node.ends.get(key)
        if end is None:
            digest = chain(node.digest, key)
            end = End(tail=tail, position=node.position + len(tail), decoded=decoded, digest=digest)
            node.ends[key] = end
        end.used = self._clock
        return end

    def oldest(self, kept: list[Item]) -> list[Item]:
        """In the order in which to let go: beginnings of several texts last, the longest unused first, and of one text
        the end first."""
        shared: set[Node] = set()
        for node in self.nodes():
            above = node if node.branched else None
            while above is not None and above not in shared:
                shared.add(above)
                above = above.parent
        return sorted(kept, key=lambda item: (item[1] in shared, item[1].used, -_depth(*item)))

    def remove(self, node: Node, kept: Node | End) -> list[Item]:
        """Takes an end, or a node with all below it, out of the tree; returns what went."""
        if isinstance(kept, End):
            node.ends = {k: e for k, e in node.ends.items() if e is not kept}
            kept.gone = True
            return [(node, kept)]
        assert node.parent is not None, "the root stays"
        node.parent.children.pop(node.key, None)
        gone: list[Item] = []
        stack = [node]
        while stack:
            below = stack.pop()
            gone += [(below, below), *((below, end) for end in below.ends.values())]
            stack += below.children.values()
        for _, taken in gone:
            taken.gone = True
        return gone


def _depth(node: Node, kept: Node | End) -> float:
    return node.depth + (0.5 if kept is not node else 0)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
