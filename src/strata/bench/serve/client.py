"""One streamed answer from any server that speaks OpenAI's protocol, with the moment of every piece."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import pairwise
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from strata.errors import UsageError

_TEXT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass
class Sample:
    """One request. Moments are seconds of time.perf_counter; `pieces`: when each chunk with text came. Token counts are
    the server's (`usage`), else None; then a piece counts as a token."""

    begun: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    error: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.pieces) if self.output_tokens is None else self.output_tokens

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.pieces[0] - self.begun

    @property
    def tpot(self) -> float | None:
        """Mean seconds a token after the first; None where there is none."""
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces."""
        return [b - a for a, b in pairwise(self.pieces)]


@dataclass(frozen=True)
class Target:
    """Where to ask: base URL with or without `/v1`, key, `chat` or `completions`, seconds without a byte to give up."""

    url: str
    key: str = ""
    api: str = "chat"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url is {self.url}; it must be like http://127.0.0.1:8080")

    @property
    def path(self) -> str:
        """What stands before `/models` and the like."""
        path = urlsplit(self.url).path.rstrip("/")
        return path if path.endswith("/v1") else f"{path}/v1"

    def connect(self) -> HTTPConnection:
        """A new connection."""
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self.timeout)

    def model(self) -> str:
        """The first model that the server lists; UsageError where it cannot be asked."""
        connection = self.connect()
        try:
            connection.request("GET", f"{self.path}/models", headers=self._headers())
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise UsageError(f"{self.url} answered {response.status}: {_message(body)}")
            return str(json.loads(body)["data"][0]["id"])
        except (OSError, HTTPException) as error:
            raise UsageError(f"{self.url} cannot be asked: {error}") from None
        except (ValueError, LookupError, TypeError):
            raise UsageError(f"{self.url} lists no models; name one with --model") from None
        finally:
            connection.close()

    def body(self, model: str, prompt: str, max_tokens: int, extra: dict[str, Any]) -> dict[str, Any]:
        """A request's body; `extra` fields last."""
        asked: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        asked["stream_options"] = {"include_usage": True}
        if self.api == "chat":
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        return asked | extra

    def ask(self, body: dict[str, Any]) -> Sample:
        """Streams one answer to its end; what goes wrong is the sample's `error`."""
        sample = Sample(perf_counter())
        connection = self.connect()
        try:
            where = f"{self.path}/{'chat/completions' if self.api == 'chat' else 'completions'}"
            connection.request("POST", where, json.dumps(body), self._headers())
            _read(connection.getresponse(), sample)
        except (OSError, HTTPException) as error:
            sample.error = f"{type(error).__name__}: {error}"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            sample.error = f"not the protocol: {type(error).__name__}: {error}"
        finally:
            sample.ended = perf_counter()
            connection.close()
        return sample

    def _headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return {"Content-Type": "application/json", **key}


def _read(response: HTTPResponse, sample: Sample) -> None:
    if response.status != 200:
        sample.error = f"{response.status}: {_message(response.read())}"
        return
    done = False
    for event in _events(response):
        if event == "[DONE]":
            done = True
            continue
        chunk = json.loads(event)
        if chunk.get("error"):
            sample.error = str(chunk["error"].get("message", chunk["error"]))
            return
        if any(_has_text(choice) for choice in chunk.get("choices") or ()):
            sample.pieces.append(perf_counter())
        if usage := chunk.get("usage"):
            sample.prompt_tokens, sample.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if not done:
        sample.error = "the stream ended before [DONE]"
    elif not sample.pieces:
        sample.error = "the answer has no text"


def _events(response: HTTPResponse) -> Iterator[str]:
    for line in response:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(key) for key in _TEXT_KEYS)


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
        return str(found["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace").strip()
