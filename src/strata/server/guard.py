"""Who may ask: host names, origins and keys, checked before anything is read."""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from strata.config import ServerOptions
from strata.errors import UsageError
from strata.server.errors import error_body, note_refusal
from strata.server.page.files import PATHS

OPEN_PATHS = (
    frozenset({"/health"}) | PATHS
)  # answered without a key: for load balancers; the page, where it is entered
DRAIN = (256 << 10, 0.25)  # bytes and seconds
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Access:
    """What is allowed; empty `hosts`: any, empty `keys`: none is needed. Keys are kept as their SHA-256."""

    hosts: frozenset[str]
    origins: frozenset[str]
    keys: tuple[bytes, ...]
    open_paths: frozenset[str] = OPEN_PATHS

    @classmethod
    def of(cls, options: ServerOptions, keys: Sequence[str]) -> "Access":
        """From the settings; UsageError where a server that others can reach would take anyone."""
        local = options.host in _LOOPBACK
        if not local and not keys:
            raise UsageError(
                f"--host {options.host} can be reached by others, so a key is needed: set STRATA_API_KEY, or give "
                "--api-key-file"
            )
        named = frozenset(_listed(options.allowed_hosts))
        # A page of another site can point a name of its own at this machine; only our own names are answered to.
        hosts = named | frozenset(_LOOPBACK) if local else named
        return cls(hosts, frozenset(_listed(options.cors_origins)), tuple(_digest(k) for k in keys))

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason; None where the request may go on."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.hosts and host and _name(host) not in self.hosts:
            return 403, f"host {_name(host)!r} is not served; --allowed-hosts names those that are"
        origin = headers.get(b"origin", "")
        if origin and origin not in self.origins and _place(origin) != host:
            return 403, f"origin {origin!r} is not allowed; --cors-origins names those that are"
        if self.keys and scope["path"] not in self.open_paths and scope["method"] != "OPTIONS":
            return self._check_key(headers, scope)
        return None

    def _check_key(self, headers: dict[bytes, str], scope: Scope) -> tuple[int, str] | None:
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else headers.get(b"x-api-key", "")
        if not given:
            return 401, "no API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        digest = _digest(given)
        # every key is compared, and each in constant time, so that the time tells nothing
        if not sum(hmac.compare_digest(digest, key) for key in self.keys):
            return 401, "the API key is not known"
        scope["strata.client"] = f"key-{digest.hex()[:8]}"
        return None


class Guard:
    """Plain ASGI, so that streams and disconnects pass untouched."""

    def __init__(self, app: ASGIApp, access: Access):
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes who may ask."""
        refusal = self.access.refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            return await self.app(scope, receive, send)
        await refuse(scope, receive, send, *refusal)


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, message: str, drain: tuple[int, float] = DRAIN
) -> None:
    """Answers and closes. What comes of the body before (at most `drain`'s bytes and seconds) is read: closed earlier,
    the answer might be lost with it."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_drain(receive, drain[0]), drain[1])
    note_refusal(scope, status, message)
    body = json.dumps(error_body(scope["path"], status, message)).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive, left: int) -> None:
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b"")) + 1
        if not message.get("more_body", False):
            return


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _name(host: str) -> str:
    """The name in a Host header, without the port; the whole of one that makes no sense."""
    with contextlib.suppress(ValueError):
        return urlsplit(f"//{host}").hostname or host
    return host


def _place(origin: str) -> str:
    """Host and port of an origin; empty for one that makes no sense."""
    with contextlib.suppress(ValueError):
        return urlsplit(origin).netloc
    return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
