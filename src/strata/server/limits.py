"""Limits that hold before a request is parsed, as plain ASGI so that streams and disconnects pass untouched."""

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.server.errors import error_body


class BodyLimit:
    """Refuses bodies over `max_bytes` with 413, by their declared length or, without one, as they arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int):
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes what is small enough."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_bytes:
            return await self._refuse(send, int(declared))
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise _TooLarge(received)
            return message

        try:
            await self.app(scope, counted, send)
        except _TooLarge as error:
            await self._refuse(send, error.size)

    async def _refuse(self, send: Send, size: int) -> None:
        message = f"the body has {size:,} bytes or more; at most {self.max_bytes:,} are taken"
        body = json.dumps(error_body(message, "invalid_request_error")).encode()
        headers: list[Any] = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _TooLarge(Exception):
    def __init__(self, size: int):
        super().__init__(size)
        self.size = size
