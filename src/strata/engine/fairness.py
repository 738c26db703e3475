"""Who is served next: clients share what the engine computes, and within a client short prompts go before long ones."""

from collections import Counter
from collections.abc import Iterable

from strata.engine.request import Request

AGING = 0.5  # tokens of others' prompts read meanwhile count so much against a prompt's own length


class FairShare:
    """Tokens computed for each client with open requests. A client that comes begins level with the least served."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._open: Counter[str] = Counter()

    def enter(self, client: str) -> None:
        """One more open request."""
        if not self._open[client]:
            self._served[client] = min(self._served.values(), default=0.0)
        self._open[client] += 1

    def leave(self, client: str) -> None:
        """One fewer."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client], self._served[client]

    def num_open(self, client: str) -> int:
        """Open requests of a client."""
        return self._open[client]

    def charge(self, client: str, tokens: float) -> None:
        """The engine computed so much for a client."""
        if client in self._served:
            self._served[client] += tokens

    def served(self, client: str) -> float:
        """What was computed for a client."""
        return self._served.get(client, 0.0)

    def least(self, clients: Iterable[str]) -> str:
        """The client that had least; of equals the first."""
        return min(clients, key=self.served)


class PromptOrder:
    """Which prompt is read next: of the least served client the shortest rest, less what it has waited for."""

    def __init__(self, share: FairShare):
        self._share = share
        self._read = 0  # prompt tokens read in all: the clock that prompts age by
        self._arrived: dict[Request, int] = {}

    def enter(self, request: Request) -> None:
        """A prompt that is to be read."""
        self._arrived[request] = self._read

    def leave(self, request: Request) -> None:
        """Read, or given up."""
        self._arrived.pop(request, None)

    def advance(self, request: Request, tokens: int) -> None:
        """So many tokens of a prompt were read."""
        self._read += tokens
        self._share.charge(request.client, tokens)

    def pick(self, prompts: list[Request]) -> Request:
        """The next of at least one."""
        client = self._share.least(r.client for r in prompts)
        return min((r for r in prompts if r.client == client), key=self._weight)

    def _weight(self, request: Request) -> float:
        rest = request.num_tokens - request.num_computed_tokens
        return rest - AGING * (self._read - self._arrived.get(request, self._read))
