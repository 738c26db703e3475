"""One answer as output items and as the events that build them."""

import secrets
import time
from collections.abc import Iterator
from typing import Any

from strata.server.generation import Generation, Piece
from strata.server.openai.answers import token_entry
from strata.server.openai.responses.schema import ResponsesRequest
from strata.server.service import Service
from strata.server.streaming import sse
from strata.server.usage import timings, usage
from strata.text.chat import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart


class ResponseWriter:
    """Push pieces; `response` is the answer so far, and each push gives the events that are new."""

    def __init__(self, service: Service, body: ResponsesRequest, generation: Generation):
        self._service, self._generation = service, generation
        self.response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": service.model_id,
            "output": [],
            "usage": None,
            **body.echoed(),
        }
        self._with_logprobs = body.num_logprobs is not None
        self._number = 0
        self._item: dict[str, Any] | None = None
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> str:
        """The first events."""
        return "".join(
            self._event(kind, response=self.response) for kind in ("response.created", "response.in_progress")
        )

    def push(self, piece: Piece) -> str:
        """Takes a piece in."""
        if self._with_logprobs:
            self._logprobs += [self._entry(p) for p in piece.logprobs]
        events = [made for event in piece.events for made in self._item_events(event)]
        if piece.finish_reason:
            events += self._close()
            events.append(self._finish(piece.finish_reason))
        return "".join(events)

    def fail(self, code: str, message: str) -> str:
        """The last event of an answer that broke."""
        self.response.update(status="failed", error={"code": code, "message": message})
        return self._event("response.failed", response=self.response)

    def _finish(self, reason: str) -> str:
        cut = reason == "length"
        self.response["status"] = "incomplete" if cut else "completed"
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
            for item in self.response["output"][-1:]:
                item["status"] = "incomplete"
        counted = usage([self._generation])
        self.response["usage"] = {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        }
        self.response["timings"] = timings(self._generation)
        kind = "response.incomplete" if cut else "response.completed"
        return self._event(kind, response=self.response)

    def _item_events(self, event: Event) -> Iterator[str]:
        match event:
            case ReasoningDelta(text):
                yield from self._ensure("reasoning")
                self._part["text"] += text
                yield self._at("response.reasoning_text.delta", content_index=0, delta=text)
            case ContentDelta(text):
                yield from self._ensure("message")
                self._part["text"] += text
                yield self._at(
                    "response.output_text.delta", content_index=0, delta=text, logprobs=self._new_logprobs()
                )
            case ToolCallStart(_, name, _):
                yield from self._close()
                call = {"name": name, "arguments": "", "call_id": f"call_{secrets.token_hex(12)}"}
                yield self._open("function_call", "fc", call)
            case ArgumentsDelta(_, text):
                self._now["arguments"] += text
                yield self._at("response.function_call_arguments.delta", delta=text)
            case ToolCallEnd():
                yield from self._close()

    def _ensure(self, kind: str) -> Iterator[str]:
        """An item of this kind is open, with its one part."""
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self._close()
        if kind == "message":
            yield self._open("message", "msg", {"role": "assistant", "content": []})
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            yield self._open("reasoning", "rs", {"summary": [], "content": []})
            part = {"type": "reasoning_text", "text": ""}
        self._now["content"].append(part)
        yield self._at("response.content_part.added", content_index=0, part=dict(part))

    def _open(self, kind: str, prefix: str, fields: dict[str, Any]) -> str:
        item = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "in_progress", **fields}
        self._item = item
        self.response["output"].append(item)
        index = len(self.response["output"]) - 1
        return self._event("response.output_item.added", output_index=index, item=item)

    def _close(self) -> Iterator[str]:
        """Ends the open item."""
        item = self._item
        if item is None:
            return
        item["status"] = "completed"
        if item["type"] == "function_call":
            yield self._at(
                "response.function_call_arguments.done", name=item["name"], arguments=item["arguments"]
            )
        else:
            part = self._part
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            more = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
            yield self._at(f"response.{kind}.done", content_index=0, text=part["text"], **more)
            yield self._at("response.content_part.done", content_index=0, part=part)
        index = len(self.response["output"]) - 1
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._item = None

    @property
    def _now(self) -> dict[str, Any]:
        assert self._item is not None
        return self._item

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._now["content"][0]
        return part

    def _new_logprobs(self) -> list[dict[str, Any]]:
        new, self._logprobs = self._logprobs, []
        self._part["logprobs"] += new
        return new

    def _entry(self, p: Any) -> dict[str, Any]:
        top = [token_entry(self._service, token, logprob) for token, logprob in p.top]
        return {**token_entry(self._service, p.token_id, p.logprob), "top_logprobs": top}

    def _at(self, kind: str, **more: Any) -> str:
        index = len(self.response["output"]) - 1
        return self._event(kind, item_id=self._now["id"], output_index=index, **more)

    def _event(self, kind: str, **more: Any) -> str:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **more}, kind)
