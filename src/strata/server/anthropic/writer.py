"""One answer as content blocks and as the events that build them, in the order that Anthropic's clients expect."""

import hashlib
import json
import secrets
from typing import Any

from strata.server.generation import Generation, Piece
from strata.server.streaming import sse
from strata.text.chat import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """Push pieces; `message` is the answer so far, and each push gives the events that are new."""

    def __init__(self, model: str, generation: Generation, show_thinking: bool = True):
        self._generation, self._show_thinking = generation, show_thinking
        self.message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {},
        }
        self._block: dict[str, Any] | None = None
        self._arguments = ""

    def opening(self) -> str:
        """The first event."""
        self.message["usage"] = self._usage(0)
        return sse({"type": "message_start", "message": self.message}, "message_start")

    def push(self, piece: Piece) -> str:
        """Takes a piece in."""
        parts = [self._event(event) for event in piece.events]
        if piece.finish_reason:
            parts.append(self._close())
            parts.append(self._finish(piece.finish_reason))
        return "".join(parts)

    def _event(self, event: Event) -> str:
        match event:
            case ReasoningDelta(text):
                text = text if self._show_thinking else ""
                opened = self._ensure({"type": "thinking", "thinking": "", "signature": ""})
                self._block_now()["thinking"] += text
                return opened + self._delta({"type": "thinking_delta", "thinking": text})
            case ContentDelta(text):
                opened = self._ensure({"type": "text", "text": ""})
                self._block_now()["text"] += text
                return opened + self._delta({"type": "text_delta", "text": text})
            case ToolCallStart(_, name, _):
                block = {
                    "type": "tool_use",
                    "id": f"toolu_{secrets.token_hex(12)}",
                    "name": name,
                    "input": {},
                }
                self._arguments = ""
                return self._close() + self._open(block)
            case ArgumentsDelta(_, text):
                self._arguments += text
                return self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd():
                return self._close()

    def _ensure(self, block: dict[str, Any]) -> str:
        """A block of this kind is open."""
        if self._block is not None and self._block["type"] == block["type"]:
            return ""
        return self._close() + self._open(block)

    def _open(self, block: dict[str, Any]) -> str:
        event = self._indexed("content_block_start", len(self.message["content"]), content_block=dict(block))
        self.message["content"].append(block)
        self._block = block
        return event

    def _close(self) -> str:
        """Ends the open block."""
        block, self._block = self._block, None
        if block is None:
            return ""
        signed = ""
        index = len(self.message["content"]) - 1
        if block["type"] == "thinking":
            block["signature"] = _signature(block["thinking"])
            delta = {"type": "signature_delta", "signature": block["signature"]}
            signed = self._indexed("content_block_delta", index, delta=delta)
        elif block["type"] == "tool_use":
            block["input"] = _object(self._arguments)
        return signed + self._indexed("content_block_stop", index)

    def _finish(self, reason: str) -> str:
        met = self._generation.reader.stop_sequence
        full = reason == "length" and self._generation.context_is_full
        known = "model_context_window_exceeded" if full else _STOP_REASONS[reason]
        self.message["stop_reason"] = "stop_sequence" if met else known
        self.message["stop_sequence"] = met
        self.message["usage"] = self._usage(self._generation.reader.num_tokens)
        delta = {key: self.message[key] for key in ("stop_reason", "stop_sequence")}
        last = {"type": "message_delta", "delta": delta, "usage": self.message["usage"]}
        return sse(last, "message_delta") + sse({"type": "message_stop"}, "message_stop")

    def _usage(self, output: int) -> dict[str, Any]:
        cached, reader = self._generation.num_cached_tokens, self._generation.reader
        return {
            "input_tokens": self._generation.num_prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
            "output_tokens_details": {"thinking_tokens": reader.num_reasoning_tokens},
        }

    def _block_now(self) -> dict[str, Any]:
        assert self._block is not None
        return self._block

    def _delta(self, delta: dict[str, Any]) -> str:
        return self._indexed("content_block_delta", len(self.message["content"]) - 1, delta=delta)

    @staticmethod
    def _indexed(kind: str, index: int, **more: Any) -> str:
        return sse({"type": kind, "index": index, **more}, kind)


def _signature(thinking: str) -> str:
    """Clients send it back with the thinking; it says nothing beyond that and is not checked."""
    return hashlib.sha256(thinking.encode()).hexdigest()


def _object(arguments: str) -> Any:
    """The arguments of a call; those of one that was cut off, as far as they are whole: none."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
