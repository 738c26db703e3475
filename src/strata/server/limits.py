"""What happens to requests before they are read: a limit on bodies, and HEAD. Plain ASGI, so that streams and
disconnects pass untouched."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata.server.guard import DRAIN, refuse

_WORTH_READING = 4  # times the limit: a body of a little too much is read, so that its sender reads why
_SECONDS = 2.0


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
            return await self._refuse(scope, receive, send, int(declared))
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
            await self._refuse(scope, receive, send, error.size)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, size: int) -> None:
        message = f"the body has {size:,} bytes or more; at most {self.max_bytes:,} are taken"
        most = _WORTH_READING * self.max_bytes
        await refuse(scope, receive, send, 413, message, (most, _SECONDS) if size <= most else DRAIN)


class _TooLarge(BaseException):
    """No Exception: the framework would take it for a body that does not parse."""

    def __init__(self, size: int):
        super().__init__(size)
        self.size = size


class HeadAsGet:
    """HEAD, as load balancers ask, is GET whose body is left out: the HTTP server does that by its own scope."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes everything."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)
