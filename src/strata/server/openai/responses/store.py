"""Responses that the server keeps: in memory, the oldest leaving first."""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

MAX_RESPONSES, MAX_BYTES = 4096, 64 << 20


@dataclass(frozen=True)
class Stored:
    """A response, the items it was an answer to, and the conversation up to and with it."""

    response: dict[str, Any]
    input_items: list[dict[str, Any]]
    items: list[dict[str, Any]]
    owner: str
    num_bytes: int


class ResponseStore:
    """Bounded by count and by bytes of JSON; each response belongs to the client that asked for it."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES):
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._num_bytes = 0

    def put(
        self,
        response: dict[str, Any],
        input_items: list[dict[str, Any]],
        items: list[dict[str, Any]],
        owner: str,
    ) -> None:
        """Keeps a response for as long as there is room."""
        size = len(json.dumps([response, items]))
        self._stored[response["id"]] = Stored(response, input_items, items, owner, size)
        self._num_bytes += size
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            _, oldest = self._stored.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def get(self, response_id: str, owner: str) -> Stored | None:
        """A response of this client."""
        found = self._stored.get(response_id)
        if found is None or found.owner != owner:
            return None
        self._stored.move_to_end(response_id)
        return found

    def delete(self, response_id: str, owner: str) -> bool:
        """Whether there was one."""
        found = self.get(response_id, owner)
        if found is None:
            return False
        self._num_bytes -= self._stored.pop(response_id).num_bytes
        return True
