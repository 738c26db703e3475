"""How answers are written in OpenAI's protocol: ids, object names, where the text stands, whole or as chunks."""

import json
import secrets
import time
from collections.abc import Iterable
from typing import Any

from strata.text.chat import ContentDelta, Event, OutputParser, ReasoningDelta


class Shape:
    """One answer: push text as it comes, finish, and take either the whole body or the chunks."""

    prefix = object_name = chunk_name = ""

    def __init__(self, model: str):
        self._base = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def push(self, text: str) -> list[dict[str, Any]]:
        """Choices of the chunks that this text makes."""
        raise NotImplementedError

    def finish(self, reason: str) -> list[dict[str, Any]]:
        """Choices of the last chunks; the very last carries the finish reason."""
        raise NotImplementedError

    def choice(self, reason: str) -> dict[str, Any]:
        """The choice of a whole answer."""
        raise NotImplementedError

    def opening(self) -> list[dict[str, Any]]:
        """Choices that a stream begins with."""
        return []

    def whole(self, reason: str, usage: dict[str, int]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self.choice(reason)]
        return {**self._base, "object": self.object_name, "choices": choices, "usage": usage}

    def chunks(self, choices: Iterable[dict[str, Any]]) -> str:
        """Server-sent events, one a choice."""
        return "".join(self.chunk([choice]) for choice in choices)

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        """One server-sent event."""
        body = {**self._base, "object": self.chunk_name, "choices": choices, **more}
        return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


class TextShape(Shape):
    """/v1/completions."""

    prefix, object_name, chunk_name = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str):
        super().__init__(model)
        self._text = ""

    def push(self, text: str) -> list[dict[str, Any]]:
        """The text as it is."""
        self._text += text
        return [_text_choice(text, None)] if text else []

    def finish(self, reason: str) -> list[dict[str, Any]]:
        """An empty piece with the reason."""
        return [_text_choice("", reason)]

    def choice(self, reason: str) -> dict[str, Any]:
        """All the text."""
        return _text_choice(self._text, reason)


class ChatShape(Shape):
    """/v1/chat/completions: reasoning and content apart."""

    prefix, object_name, chunk_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, parser: OutputParser):
        super().__init__(model)
        self._parser = parser
        self._reasoning = self._content = ""

    def opening(self) -> list[dict[str, Any]]:
        """The role."""
        return [_delta({"role": "assistant", "content": ""}, None)]

    def push(self, text: str) -> list[dict[str, Any]]:
        """Deltas of reasoning and content."""
        return self._deltas(self._parser.push(text))

    def finish(self, reason: str) -> list[dict[str, Any]]:
        """What the parser held back, then the reason."""
        return [*self._deltas(self._parser.finish()), _delta({}, reason)]

    def choice(self, reason: str) -> dict[str, Any]:
        """The message."""
        message: dict[str, Any] = {"role": "assistant", "content": self._content}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        return {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}

    def _deltas(self, events: list[Event]) -> list[dict[str, Any]]:
        deltas = []
        for event in events:
            if isinstance(event, ReasoningDelta):
                self._reasoning += event.text
                deltas.append(_delta({"reasoning_content": event.text}, None))
            elif isinstance(event, ContentDelta):
                self._content += event.text
                deltas.append(_delta({"content": event.text}, None))
        return deltas


def _text_choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}


def _delta(delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}
