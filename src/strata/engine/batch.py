"""The sequences that decode, as arrays: what a step does for each of them costs no Python but one short loop."""

from collections.abc import Mapping

import numpy as np

from strata.engine.plan import DecodeRows
from strata.engine.request import Request
from strata.errors import StrataError
from strata.ops import PAGE_CELLS

NO_TOKENS: frozenset[int] = frozenset()


class DecodeBatch:
    """Requests whose prompts are computed; each has one token that exists and is not computed."""

    def __init__(self, num_sequences: int):
        self.requests: list[Request] = []
        self._stops: list[frozenset[int]] = []
        self._tokens = np.zeros(num_sequences, np.int32)
        self._positions = np.zeros(num_sequences, np.int32)
        self._left = np.zeros(num_sequences, np.int64)
        self._sequences = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.requests)

    def join(self, request: Request) -> None:
        """Takes in a request with at least one output token."""
        sampling, s = request.sampling, request.sequence
        self.requests.append(request)
        self._tokens[s] = request.output_token_ids[-1]
        self._positions[s] = request.num_computed_tokens
        self._left[s] = sampling.max_tokens - len(request.output_token_ids)
        self._changed()

    def leave(self, request: Request) -> None:
        """Lets a request go."""
        self.requests.remove(request)
        self._changed()

    def _changed(self) -> None:
        self._sequences = np.array([r.sequence for r in self.requests], np.int32)
        self._stops = [
            NO_TOKENS if r.sampling.ignore_eos else r.sampling.stop_token_ids for r in self.requests
        ]

    def rows(self) -> DecodeRows:
        """The next row of each."""
        s = self._sequences
        return DecodeRows(s, self._positions[s], self._tokens[s])

    def at_page_ends(self) -> list[Request]:
        """Requests whose next row begins a page."""
        first = (self._positions[self._sequences] % PAGE_CELLS == 0).nonzero()[0]
        return [self.requests[i] for i in first]

    def advance(self, token_ids: list[int], faults: Mapping[int, StrataError]) -> dict[Request, str]:
        """Takes in a step's tokens, in the order of `rows`; returns the requests that end, with the reasons. Tokens of
        sequences at fault stand for nothing."""
        s = self._sequences
        self._tokens[s] = token_ids
        self._positions[s] += 1
        self._left[s] -= 1
        ended = {self.requests[i]: "length" for i in (self._left[s] <= 0).nonzero()[0]}
        for request, token, stops in zip(self.requests, token_ids, self._stops, strict=True):
            request.output_token_ids.append(token)
            request.num_computed_tokens += 1
            if token in stops:
                ended[request] = "stop"
            if request.mask is not None and request.sequence not in faults and not accept(request, token):
                ended[request] = "error"
        return ended


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
