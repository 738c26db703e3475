"""Where sequences live: places, pages, what was moved out of the way, and what sessions know of their beginnings."""

from heapq import heapify, heappop, heappush

from strata.engine.keeper import Keeper
from strata.engine.request import Request
from strata.engine.sessions import Sessions
from strata.memory import Checkpoint, PageTable
from strata.ops import PAGE_CELLS


class Sequences:
    """The scheduler's SequenceMemory. Low sequence numbers come first, so that places never used are never touched."""

    def __init__(self, num_sequences: int, pages: PageTable, keeper: Keeper, sessions: Sessions):
        self._pages, self._keeper, self._sessions = pages, keeper, sessions
        self._free = list(range(num_sequences))
        heapify(self._free)
        self._running: list[Request] = []
        self._parked: dict[Request, Checkpoint] = {}

    def awaits(self, request: Request) -> bool:
        """As the protocol says."""
        return request not in self._parked and self._sessions.awaits(request)

    def start(self, request: Request) -> bool:
        """As the protocol says."""
        if not self._free:
            return False
        parked = self._parked.get(request)
        if parked is not None:
            return self._resume(request, parked)
        match = self._sessions.match(request)
        if match is None:
            return False
        missing = _pages(_cells(request)) - sum(node.page >= 0 for node in match.path)
        if not self._sessions.store.make_room(missing + self._promised(), request):
            self._sessions.store.settle(request)
            return False
        request.sequence = heappop(self._free)
        position = self._sessions.attach(request, match)
        request.num_computed_tokens = position
        if not request.output_token_ids:
            request.num_cached_tokens = max(request.num_cached_tokens, position)
        self._running.append(request)
        return True

    def _resume(self, request: Request, parked: Checkpoint) -> bool:
        if not self._sessions.store.make_room(_pages(_cells(request)) + self._promised()):
            return False
        request.sequence = heappop(self._free)
        self._keeper.restore(request.sequence, self._parked.pop(request))
        self._sessions.store.parked_bytes -= parked.nbytes
        self._sessions.reopen(request)
        self._running.append(request)
        return True

    def _promised(self) -> int:
        """Pages that running requests still need for their prompts."""
        held = self._pages.missing
        return sum(
            held(r.sequence, len(r.prompt_token_ids) + (r.sampling.max_tokens > 1)) for r in self._running
        )

    def grow(self, request: Request, cells: int) -> bool:
        """As the protocol says."""
        missing = self._pages.missing(request.sequence, cells)
        if missing and not self._sessions.store.make_room(missing):
            return False
        self._keeper.grow(request.sequence, cells)
        return True

    def taps(self, request: Request, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """As the protocol says."""
        return self._sessions.taps(request, begin, end)

    def computed(self, request: Request) -> None:
        """As the protocol says."""
        self._sessions.extend(request)

    def park(self, request: Request, void: bool) -> None:
        """What was only read, and from a beginning that nobody wrote, is read again; all else moves to RAM."""
        position = request.num_computed_tokens
        if position and not void and (request.output_token_ids or request.num_cached_tokens):
            parked = self._keeper.checkpoint(request.sequence, position, pages=True)
            self._parked[request] = parked
            self._sessions.store.parked_bytes += parked.nbytes
        else:
            request.num_computed_tokens = 0
        self._release(request)

    def end(self, request: Request, void: bool) -> None:
        """As the protocol says."""
        parked = self._parked.pop(request, None)
        if parked is not None:
            self._sessions.store.parked_bytes -= parked.nbytes
        if request.sequence >= 0:
            if not void:
                self._sessions.keep(request)
            self._release(request)
        self._sessions.close_request(request)

    def _release(self, request: Request) -> None:
        self._pages.free(request.sequence)
        heappush(self._free, request.sequence)
        self._running.remove(request)
        request.sequence = -1


def _cells(request: Request) -> int:
    """Of what is known of it, and of the next token, where one follows that."""
    last = request.sampling.max_tokens - len(request.output_token_ids) <= 1
    return request.num_tokens + (not last)


def _pages(cells: int) -> int:
    return -(-cells // PAGE_CELLS)
