"""Connections whose client falls silent: while it sends a request, or while it should read an answer."""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that is closed when a client has sent only part of a request, or read nothing of an answer that waits
    for it, for `seconds`. A client that waits for an answer may wait as long as that takes."""

    seconds: ClassVar[float] = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A request must begin."""
        super().connection_made(transport)
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._expect_more()

    def data_received(self, data: bytes) -> None:
        """More must come until the request is whole."""
        super().data_received(data)
        self._cancel(self._reading)
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            self._expect_more()

    def pause_writing(self) -> None:
        """The client must read."""
        super().pause_writing()
        self._writing = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has."""
        self._cancel(self._writing)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._cancel(self._reading)
        self._cancel(self._writing)
        super().connection_lost(exc)

    def _expect_more(self) -> None:
        self._reading = self.loop.call_later(self.seconds, self.transport.abort)

    @staticmethod
    def _cancel(timer: Any) -> None:
        if timer is not None:
            timer.cancel()


def protocol(seconds: float) -> type[PatientProtocol]:
    """The protocol with this patience."""
    return type("Patient", (PatientProtocol,), {"seconds": seconds})
