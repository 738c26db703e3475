"""The sequences that decode, as arrays: what a step does for each of them costs no Python but one short loop."""

from collections.abc import Callable, Mapping

import numpy as np

from strata.engine.plan import DecodeRows, Ints
from strata.engine.request import Request
from strata.errors import StrataError
from strata.ops import PAGE_CELLS

NO_TOKENS: frozenset[int] = frozenset()
NEVER = 1 << 62


class DecodeBatch:
    """Requests whose prompts are computed; each has one token that exists and is not computed.

    `num_computed_tokens` of its requests is exact when they leave, and in `at_page_ends`.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._appends: list[Callable[[int], None]] = []
        self._stops: list[frozenset[int]] = []
        self._masked: list[int] = []  # rows with masks
        self._sequences = self._positions = self._tokens = np.zeros(0, np.int32)
        self._to_length_end = self._to_page_end = (
            NEVER  # steps until the first request ends by length; begins a page
        )

    def __len__(self) -> int:
        return len(self.requests)

    def join(self, request: Request) -> None:
        """Takes in a request with at least one output token."""
        self._sync()
        self.requests.append(request)
        self._changed()

    def leave(self, request: Request) -> None:
        """Lets a request go."""
        self._sync()
        self.requests.remove(request)
        self._changed()

    def _sync(self) -> None:
        for request, position in zip(self.requests, self._positions.tolist(), strict=True):
            request.num_computed_tokens = position

    def _changed(self) -> None:
        requests = self.requests
        self._appends = [r.output_token_ids.append for r in requests]
        self._stops = [NO_TOKENS if r.sampling.ignore_eos else r.sampling.stop_token_ids for r in requests]
        self._masked = [i for i, r in enumerate(requests) if r.mask is not None]
        self._sequences = np.array([r.sequence for r in requests], np.int32)
        self._positions = np.array([r.num_computed_tokens for r in requests], np.int32)
        self._tokens = np.array([r.output_token_ids[-1] for r in requests], np.int32)
        self._count_steps()

    def _count_steps(self) -> None:
        left = (r.sampling.max_tokens - len(r.output_token_ids) for r in self.requests)
        self._to_length_end = min(left, default=NEVER)
        self._to_page_end = min((-self._positions % PAGE_CELLS).tolist(), default=NEVER)

    def rows(self) -> DecodeRows:
        """The next row of each. `sequences` is the same array until a request joins or leaves."""
        return DecodeRows(self._sequences, self._positions, self._tokens)

    def at_page_ends(self) -> list[Request]:
        """Requests whose next row begins a page."""
        if self._to_page_end > 0:
            return []
        self._sync()
        first = (self._positions % PAGE_CELLS == 0).nonzero()[0]
        return [self.requests[i] for i in first]

    def advance(self, token_ids: Ints, faults: Mapping[int, StrataError]) -> dict[Request, str]:
        """Takes in a step's tokens, i32 in the order of `rows`; returns the requests that end, with the reasons. Tokens
        of sequences at fault stand for nothing."""
        ended: dict[Request, str] = {}
        if not self.requests:
            return ended
        tokens = token_ids.tolist()
        for row, (append, token, stops) in enumerate(zip(self._appends, tokens, self._stops, strict=True)):
            append(token)
            if token in stops:
                ended[self.requests[row]] = "stop"
        self._tokens, self._positions = token_ids, self._positions + 1
        self._to_length_end -= 1
        self._to_page_end -= 1
        if self._to_length_end <= 0 or self._to_page_end < 0:
            self._length_ends(ended)
            self._count_steps()
        for row in self._masked:
            request = self.requests[row]
            if request.sequence not in faults and not accept(request, tokens[row]):
                ended[request] = "error"
        return ended

    def advance_by(
        self, token_ids: Ints, accepted: Ints, faults: Mapping[int, StrataError]
    ) -> dict[Request, str]:
        """As `advance`, of a step with drafts: `accepted` tokens of each request, of which only the last can end it and
        only the last is news to its mask."""
        ended: dict[Request, str] = {}
        ends = np.cumsum(accepted)
        tokens = token_ids.tolist()
        for row, (request, end, count) in enumerate(
            zip(self.requests, ends.tolist(), accepted.tolist(), strict=True)
        ):
            request.output_token_ids.extend(tokens[end - count : end])
            if tokens[end - 1] in self._stops[row]:
                ended[request] = "stop"
        self._tokens, self._positions = token_ids[ends - 1], self._positions + accepted
        self._length_ends(ended)
        self._count_steps()
        for row in self._masked:
            request = self.requests[row]
            if request.sequence not in faults and not accept(request, tokens[ends[row] - 1]):
                ended[request] = "error"
        return ended

    def _length_ends(self, ended: dict[Request, str]) -> None:
        for request in self.requests:
            if len(request.output_token_ids) >= request.sampling.max_tokens:
                ended.setdefault(request, "length")


class DecodeBatches:
    """All sequences that decode, in batches of at most `most`, of which every step takes one in turn: for devices that
    compute steps of more rows at a loss. A step: `begin` where there are several, `rows`, `advance` of the current."""

    def __init__(self, most: int):
        self._most, self._turn, self._count = most, 0, 0
        self._batches = [DecodeBatch()]
        self.current = self._batches[0]  # the batch of the step that is made or runs
        self.several = False

    def __len__(self) -> int:
        return self._count

    @property
    def requests(self) -> list[Request]:
        """Of all batches."""
        return [request for batch in self._batches for request in batch.requests]

    def begin(self) -> None:
        """The next step is the next batch's; those that fit into the others become part of them first."""
        while self.several and self._count <= self._most * (len(self._batches) - 1):
            self._dissolve(min(self._batches, key=len))
        self._turn = (self._turn + 1) % len(self._batches)
        self.current = self._batches[self._turn]

    def rows(self) -> DecodeRows:
        """The next rows of the current batch; nothing may run ahead of them where another batch is next."""
        rows = self.current.rows()
        if not self.several:
            return rows
        return DecodeRows(rows.sequences, rows.positions, rows.token_ids, hold=True)

    def join(self, request: Request) -> None:
        """Takes in a request with at least one output token."""
        smallest = min(self._batches, key=len)
        if len(smallest) >= self._most:
            smallest = DecodeBatch()
            self._batches.append(smallest)
            self.several = True
        self._count += 1
        smallest.join(request)

    def leave(self, request: Request) -> None:
        """Lets a request go."""
        next(batch for batch in self._batches if request in batch.requests).leave(request)
        self._count -= 1

    def _dissolve(self, batch: DecodeBatch) -> None:
        self._batches.remove(batch)
        self.several = len(self._batches) > 1
        for request in list(batch.requests):
            batch.leave(request)
            min(self._batches, key=len).join(request)


def accept(request: Request, token: int) -> bool:
    """Tells the request's mask of a token; False, with `error` set, where it raises."""
    try:
        if request.mask is not None:
            request.mask.accept(token)
    except StrataError as error:
        request.error = error
    return request.error is None


def ends(request: Request, token: int) -> str | None:
    """Why a request ends with its newest token; None when it goes on."""
    if token in request.sampling.stop_token_ids and not request.sampling.ignore_eos:
        return "stop"
    return "length" if len(request.output_token_ids) >= request.sampling.max_tokens else None
