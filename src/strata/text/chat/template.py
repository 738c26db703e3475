"""A model's own chat template: messages in, the prompt's text out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jinja2

from strata.errors import ModelFileError, StrataError, UsageError
from strata.text.chat.budget import Budget, spending
from strata.text.chat.messages import Message, has_text_arguments, normalize, parse_arguments
from strata.text.chat.protect import Protector, Segment, iterate_strings, map_plain
from strata.text.chat.sandbox import RefusedError, build_environment
from strata.text.chat.styles import ToolStyle, detect_style

KEY = "tokenizer.chat_template"
MAX_SOURCE = 1_000_000

# Marks of reasoning in a model's own turns, which templates cut out: never protected there.
_OWN_MARKS = frozenset({"<think>", "</think>"})

_PROBE_CALL = {"name": "f", "arguments": {"key": "probe-value"}}
_PROBE = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "123456789", "function": _PROBE_CALL}],
    },
]
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}},
}


class ChatTemplate:
    """A compiled template; immutable, safe to share between threads.

    `special_tokens` are variables such as bos_token; `tool_template` is the variant for conversations with tools.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        tool_template: "ChatTemplate | None" = None,
        name: str = KEY,
    ) -> None:
        self.source = source
        self.style: ToolStyle = detect_style(source)
        self.tool_template = tool_template
        self._special_tokens = dict(special_tokens or {})
        self._template = _compile(source, name)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], name: str | None = None) -> "ChatTemplate":
        """The template of a GGUF file, or its variant `name`; ModelFileError where there is none or it is broken.

        Without `name`, conversations with tools take the variant `tool_use` where the file has one.
        """
        tokens = _special_tokens(metadata)
        if name is not None:
            key = f"{KEY}.{name}"
            return cls(_source(metadata, key), tokens, name=key)
        variant = f"{KEY}.tool_use"
        for_tools = cls(_source(metadata, variant), tokens, name=variant) if variant in metadata else None
        return cls(_source(metadata, KEY), tokens, for_tools)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> str:
        """The prompt's text. Options as for `render_segments`; control tokens in messages look like the others."""
        return "".join(segment.text for segment in self.render_segments(messages, tools, (), **options))

    def render_segments(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        control_tokens: Iterable[str] = (),
        *,
        budget: Budget | None = None,
        **options: Any,
    ) -> list[Segment]:
        """The prompt's text in segments, such that control tokens spelled in the input stay text.

        Options are variables of the template: add_generation_prompt (default True), enable_thinking,
        reasoning_effort, preserve_thinking and whatever else it reads; None leaves the template its own default.
        UsageError where the template refuses the conversation or fails on it.
        """
        if tools and self.tool_template is not None:
            return self.tool_template.render_segments(
                messages, tools, control_tokens, budget=budget, **options
            )
        given = {key: value for key, value in options.items() if value is not None}
        plain = map_plain({"messages": normalize(messages), "tools": list(tools or []), "options": given})
        if has_text_arguments(plain["messages"]) and self._objects_as_arguments:
            plain["messages"] = parse_arguments(plain["messages"])
        protector = Protector(control_tokens, (self.source, *iterate_strings(plain)))
        variables = {
            "documents": None,
            "add_generation_prompt": True,
            **map_plain(plain["options"], protector.protect),
            "messages": [_protect_message(message, protector) for message in plain["messages"]],
            "tools": map_plain(plain["tools"], protector.protect) or None,
        }
        budget = budget or Budget()
        budget.marks = protector.marks
        return protector.segments(self._run(variables, budget))

    @cached_property
    def _objects_as_arguments(self) -> bool:
        """Whether tool arguments are rendered from an object rather than from JSON text: found by trying."""
        for tools in (None, [_PROBE_TOOL]):
            variables = {"messages": _PROBE, "tools": tools, "add_generation_prompt": False}
            try:
                text = self._run(variables, Budget(max_steps=100_000, max_seconds=1))
            except (UsageError, ModelFileError):
                continue
            # Python's own way of writing the object means that the template wanted text to put there.
            return "probe-value" in text and "'key': 'probe-value'" not in text
        return False

    def _run(self, variables: dict[str, Any], budget: Budget) -> str:
        parts, length = [], 0
        with spending(budget), _translated_errors():
            for part in self._template.generate(self._special_tokens | variables):
                length += len(part)
                budget.need(length)
                parts.append(part)
        return "".join(parts)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Whatever foreign code may raise while it renders, as our errors."""
    try:
        yield
    except StrataError:
        raise
    except RefusedError as error:
        raise UsageError(f"the chat template refuses the conversation: {_one_line(error)}") from None
    except (RecursionError, MemoryError):
        raise ModelFileError("the chat template nests too deep or needs too much memory") from None
    except Exception as error:
        problem = f"{type(error).__name__}: {_one_line(error)}"
        raise UsageError(f"the chat template fails on this conversation: {problem}") from None


def _compile(source: str, name: str) -> jinja2.Template:
    if len(source) > MAX_SOURCE:
        raise ModelFileError(f"{name} has {len(source)} characters, {MAX_SOURCE} are allowed")
    try:
        return build_environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"{name} line {error.lineno}: {_one_line(error)}") from None
    except (RecursionError, MemoryError):
        raise ModelFileError(f"{name} nests too deep") from None
    except Exception as error:  # the compiler meets foreign code that it was not made for
        raise ModelFileError(f"{name} cannot be compiled: {_one_line(error)}") from None


def _source(metadata: Mapping[str, Any], key: str) -> str:
    source = metadata.get(key)
    if isinstance(source, str):
        return source
    names = [other.removeprefix(f"{KEY}.") for other in metadata if other.startswith(f"{KEY}.")]
    known = f" (variants: {', '.join(sorted(names))})" if names else ""
    if source is None:
        raise ModelFileError(f"{key} is missing: the file has no such chat template{known}")
    raise ModelFileError(f"{key} must be a string, got {type(source).__name__}")


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Texts of bos_token, eos_token, unk_token and pad_token, as far as the file names them."""
    tokens, found = metadata.get("tokenizer.ggml.tokens"), {}
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    for key, short in names.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if tokens is not None and token_id is not None and 0 <= int(token_id) < len(tokens):
            found[f"{short}_token"] = str(tokens[int(token_id)])
    return found


def _protect_message(message: dict[str, Any], protector: Protector) -> dict[str, Any]:
    allowed = _OWN_MARKS if message.get("role") == "assistant" else frozenset[str]()
    changed: dict[str, Any] = map_plain(message, protector.protect)
    if allowed and isinstance(message.get("content"), str):
        changed["content"] = protector.protect(message["content"], allowed)
    return changed


def _one_line(error: Exception) -> str:
    lines = str(error).split()
    return " ".join(lines)[:300] or "no reason given"
