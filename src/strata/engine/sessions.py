"""Sessions: what earlier requests computed, kept for those that begin alike; in the pool, in RAM, on disk.

While it reads its prompt and when it ends, a request's whole pages enter the prefix tree, which holds them in the pool;
states enter where a client's points, distance or the parting of texts ask for a checkpoint, and where a turn ends.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strata.engine.keeper import Keeper
from strata.engine.request import Request
from strata.engine.session_store import SessionStore
from strata.log import logger
from strata.memory import End, Match, Node, PageTable, page_key
from strata.ops import CHUNK_BLOCK, MAX_TAPS, PAGE_CELLS

log = logger(__name__)


@dataclass(frozen=True)
class SessionLayout:
    """`every`: tokens of a prompt between two checkpoints; `first_tap`: the first slot that taps may write."""

    recurrent: bool
    every: int
    first_tap: int


@dataclass
class _Open:
    """What sessions know of a running request."""

    match: Match
    node: Node  # the last of its whole pages in the tree
    wanted: tuple[int, ...]  # positions where its state is to be kept
    taps: list[tuple[int, int]] = field(default_factory=list)  # position and slot of its last chunk's


class Sessions:
    """Works between steps; the scheduler's memory calls it."""

    def __init__(self, store: SessionStore, pages: PageTable, keeper: Keeper, layout: SessionLayout):
        self.store, self.tree = store, store.tree
        self._pages, self._keeper, self._layout = pages, keeper, layout
        self._open: dict[Request, _Open] = {}
        self._arrays: dict[Request, NDArray[np.int32]] = {}  # prompts of open requests

    def match(self, request: Request) -> Match | None:
        """What is known of a request's tokens; None while some of it is still to be read from disk."""
        # features of a prompt are those of all its rows, so that none may be left out
        tokens = request.tokens(0, request.num_tokens) if request.pooling is None else []
        match = self.tree.match(tokens, request.images)
        return match if self.store.ready(request, match) else None

    def awaits(self, request: Request) -> bool:
        """Whether a running request is about to leave more of a request's beginning than is known now, or the disk is
        being read for it."""
        if request.pooling is not None:
            return False
        match = self.match(request)
        if match is None:
            return True
        tokens = self._array(request)
        for other, found in self._open.items():
            if other.num_computed_tokens < len(other.prompt_token_ids) and other.sequence >= 0:
                agreed = min(_agreed(tokens, self._array(other)), len(tokens) - 1)
                useful = self._will_leave(other, found, agreed)
                if useful > max(other.num_computed_tokens, match.position):
                    return True
        return False

    def _array(self, request: Request) -> NDArray[np.int32]:
        if request not in self._arrays:
            self._arrays[request] = np.array(request.prompt_token_ids, np.int32)
        return self._arrays[request]

    def _will_leave(self, request: Request, found: _Open, agreed: int) -> int:
        """Up to where a request that agrees so far can go on, when this one is read."""
        if not self._layout.recurrent:
            return min(agreed, len(request.prompt_token_ids)) // PAGE_CELLS * PAGE_CELLS
        return max((p for p in found.wanted if p <= agreed), default=0)

    def attach(self, request: Request, match: Match) -> int:
        """Gives a request's new sequence the beginning that was matched; returns its tokens."""
        sequence = request.sequence
        self.tree.touch(match.path, match.end)
        self.store.to_pool(node for node in match.path if node.page < 0)
        self._pages.share(sequence, [node.page for node in match.path])
        if match.end is not None:
            self._copy_end(match.end, self._pages.grow(sequence, match.position)[-1])
        self._keeper.map(sequence, self._pages.pages(sequence))
        last = match.last
        if last is not None and last.state is not None:
            self._keeper.restore(sequence, last.state)
        self._keeper.commit({sequence: 0})
        self._open[request] = _Open(
            match, match.path[-1] if match.path else self.tree.root, self._wanted(request, match)
        )
        self._tell(request, match)
        self.store.settle(request)
        return match.position

    def _copy_end(self, end: End, page: int) -> None:
        if end.page >= 0:
            self._keeper.copy_page(end.page, page)
        elif end.cells is not None:
            self._keeper.write_cells([page], end.cells[None])

    def _wanted(self, request: Request, match: Match) -> tuple[int, ...]:
        """Where checkpoints are laid: the client's points, every so many tokens, where another text went another way,
        and before the prompt's end, where the same prompt may come again with another last line."""
        if not self._layout.recurrent:
            return ()
        prompt = len(request.prompt_token_ids)
        points = [
            *request.cache_points,
            *range(self._layout.every, prompt, self._layout.every),
            match.agreed,
            prompt - 1,
        ]
        blocks = {min(max(p, 0), prompt - 1) // CHUNK_BLOCK * CHUNK_BLOCK for p in points}
        return tuple(sorted(b for b in blocks if b > match.position))

    def _tell(self, request: Request, match: Match) -> None:
        """Says why a prompt could not begin with more of what is known."""
        prompt, agreed = len(request.prompt_token_ids), min(match.agreed, len(request.prompt_token_ids))
        lost = agreed - match.position
        if match.position == 0 and agreed < PAGE_CELLS:
            why = (
                f"no known text begins with its first {agreed + 1} tokens"
                if agreed
                else "its first token is new"
            )
        elif lost >= PAGE_CELLS:
            why = f"it agrees with a known text up to token {agreed}, but the last checkpoint lies at {match.position}"
        else:
            why = (
                f"it differs from what is known at token {agreed}"
                if agreed < prompt
                else "all of it is known"
            )
        log.info(
            "request %d: %d of %d prompt tokens reused; %s", request.request_id, match.position, prompt, why
        )

    def taps(self, request: Request, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """(position, slot) of the states that a chunk of tokens [begin, end) is to write out."""
        found = self._open[request]
        inside = [p for p in found.wanted if begin < p <= end][-MAX_TAPS:]
        found.taps = [(position, self._layout.first_tap + i) for i, position in enumerate(inside)]
        return tuple(found.taps)

    def extend(self, request: Request) -> None:
        """Enters the whole pages that a request has computed, and the states that its last chunk's taps wrote."""
        found, pages = self._open[request], self._pages.pages(request.sequence)
        if found.node.gone:
            found.node = self.tree.root
        while found.node.position + PAGE_CELLS <= request.num_computed_tokens:
            begin = found.node.position
            tokens = request.tokens(begin, begin + PAGE_CELLS)
            node = self.tree.extend(found.node, page_key(tokens, request.images, begin))
            if node.page < 0:
                node.page = pages[begin // PAGE_CELLS]
                self._pages.hold(node.page)
            found.node = node
            for position, slot in found.taps:
                if position == node.position and node.state is None:
                    node.state = self._keeper.tapped(slot, position)
        if found.taps:
            found.taps = []
            self.store.fit()

    def keep(self, request: Request) -> None:
        """Enters all that a request computed, to the token; the sequence itself is left as it is."""
        self.extend(request)
        found, position = self._open[request], request.num_computed_tokens
        node, tail = found.node, tuple(request.tokens(found.node.position, position))
        kept: Node | End = node
        if any(at >= node.position for at, _ in request.images):
            tail = ()  # an end tells nothing of images
        elif tail:
            kept = self.tree.put_end(node, tail, self._decoded(request, found.match))
            if kept.page < 0:
                kept.page = self._pages.pages(request.sequence)[position // PAGE_CELLS]
                self._pages.hold(kept.page)
        if self._layout.recurrent and position == node.position + len(tail) > 0 and kept.state is None:
            kept.state = self._keeper.checkpoint(request.sequence, position)
        self.store.fit()
        self.store.write_later(node, kept)

    def _decoded(self, request: Request, match: Match) -> bool:
        """Whether decode wrote tokens of the block that the request ends in."""
        position = request.num_computed_tokens
        begun = match.end is not None and match.end.decoded
        same = match.position // PAGE_CELLS == position // PAGE_CELLS
        return position > len(request.prompt_token_ids) or (begun and same)

    def reopen(self, request: Request) -> None:
        """A request that had to make room goes on, with pages of its own."""
        self._open[request].node = self.tree.root

    def close_request(self, request: Request) -> None:
        """The request ended."""
        self._open.pop(request, None)
        self._arrays.pop(request, None)
        self.store.settle(request)


def _agreed(tokens: NDArray[np.int32], others: NDArray[np.int32]) -> int:
    """Tokens of the common beginning."""
    count = min(len(tokens), len(others))
    differ = (tokens[:count] != others[:count]).nonzero()[0]
    return int(differ[0]) if len(differ) else count
