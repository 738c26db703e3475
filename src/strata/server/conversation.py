"""A conversation as every chat protocol states it, and what it becomes: prompt, parser, constraint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from strata.engine import TokenMask
from strata.errors import ModelFileError, UsageError
from strata.text import Tokenizer
from strata.text.chat import (
    ChatPrompt,
    ChatTemplate,
    OutputParser,
    ToolStyle,
    describe_tools,
    effort_options,
    encode_chat,
)
from strata.text.grammar import CallRules, GrammarCompiler, ReasoningGate, TokenConstraint, call_grammar

# Names that rendering itself takes, so that no variable of a template can be called so here.
_NOT_VARIABLES = {"self", "tokenizer", "template", "messages", "tools", "control_tokens", "budget"}


@dataclass(frozen=True)
class ToolChoice:
    """Which tools the answer may or must call."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None  # of those allowed; None: all
    parallel: bool = True


@dataclass(frozen=True)
class Conversation:
    """Messages and tools as OpenAI writes them; `grammar` (Lark) is what the content must be, `schema` likewise where
    tools may be called instead."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = ToolChoice()
    grammar: str | None = None
    schema: Mapping[str, Any] | None = None
    effort: str | None = None
    thinking: bool | None = None  # None: as the template has it
    reasoning_budget: int | None = None  # tokens
    variables: Mapping[str, Any] = field(default_factory=dict)  # of the template

    @property
    def allowed_tools(self) -> list[Mapping[str, Any]]:
        """The tools that the answer may call; UsageError for a choice that was not offered."""
        choice = self.tool_choice
        offered = {tool["function"]["name"]: tool for tool in self.tools}
        if len(offered) < len(self.tools):
            raise UsageError("tools: two functions have the same name")
        for name in choice.names or ():
            if name not in offered:
                raise UsageError(f"tool_choice names {name!r}, which is not among the tools")
        if choice.mode == "required" and not offered:
            raise UsageError("tool_choice asks for a call, and there are no tools")
        return [tool for name, tool in offered.items() if choice.names is None or name in choice.names]


@dataclass(frozen=True)
class Prepared:
    """What a conversation becomes."""

    prompt: ChatPrompt
    parser: Callable[[], OutputParser]
    mask: Callable[[], TokenMask | None]
    cache_points: tuple[int, ...]


class Preparer:
    """Renders conversations with one model's template, and makes constraints for their answers."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, vocab_size: int):
        self.tokenizer, self.template = tokenizer, template
        self.grammars = GrammarCompiler(tokenizer, vocab_size)

    def prepare(self, conversation: Conversation) -> Prepared:
        """UsageError for what the template refuses, or a constraint that cannot be made."""
        allowed = conversation.allowed_tools
        # tool_choice none: the tools stay in the prompt, so that its prefix stays the same, and calls stay text
        callable_tools = [] if conversation.tool_choice.mode == "none" else allowed
        prompt = self.render(conversation)
        return Prepared(
            prompt,
            lambda: prompt.parser(callable_tools),
            self._mask(conversation, prompt, callable_tools),
            cache_points(self.tokenizer, prompt, conversation.messages),
        )

    def render(self, conversation: Conversation) -> ChatPrompt:
        """The prompt alone."""
        if self.template is None:
            raise UsageError("the model file has no chat template; use /v1/completions")
        if taken := sorted(_NOT_VARIABLES & set(conversation.variables)):
            raise UsageError(f"chat_template_kwargs cannot set {taken[0]}")
        options = {**effort_options(self.template, conversation.effort), **conversation.variables}
        if conversation.thinking is not None:
            options.setdefault("enable_thinking", conversation.thinking)
        try:
            return self._encoded(self.template, conversation, options)
        except ModelFileError as error:
            # a bound on what the template may do, which this conversation goes past
            raise UsageError(str(error)) from None

    def _encoded(
        self, template: ChatTemplate, conversation: Conversation, options: Mapping[str, Any]
    ) -> ChatPrompt:
        tools: Sequence[Mapping[str, Any]] = conversation.tools
        messages: Sequence[Mapping[str, Any]] = conversation.messages
        style = (template.tool_template or template).style
        if style is ToolStyle.NONE and (tools or _has_calls(messages)):
            messages = describe_tools(messages, tools)
            prompt = encode_chat(self.tokenizer, template, messages, **options)
            return replace(prompt, style=ToolStyle.JSON)
        return encode_chat(self.tokenizer, template, messages, tools or None, **options)

    def _mask(
        self, conversation: Conversation, prompt: ChatPrompt, tools: Sequence[Mapping[str, Any]]
    ) -> Callable[[], TokenMask | None]:
        source, budget = self._grammar(conversation, prompt, tools), conversation.reasoning_budget
        if source is not None:
            self.grammars.compile(source)  # refuses what is wrong before the request is queued
        gated = prompt.starts_in_thinking or (budget is not None and source is None)

        def make() -> TokenMask | None:
            if source is None and not (gated and budget is not None):
                return None
            grammar = None if source is None else self.grammars.compile(source)
            gate = ReasoningGate(self.tokenizer, prompt.starts_in_thinking, budget) if gated else None
            return TokenConstraint(self.grammars, grammar, gate)

        return make

    def _grammar(
        self, conversation: Conversation, prompt: ChatPrompt, tools: Sequence[Mapping[str, Any]]
    ) -> str | None:
        choice = conversation.tool_choice
        required = choice.mode == "required"
        strict = any(tool["function"].get("strict") for tool in tools)
        if not tools or not (required or conversation.grammar is not None or strict):
            return conversation.grammar
        if not required and conversation.grammar is not None and conversation.schema is None:
            raise UsageError(
                "a grammar cannot be combined with tools that may be called; tool_choice none can"
            )
        rules = CallRules(
            prompt.style,
            tools,
            required=required,
            parallel=choice.parallel,
            free=not required and conversation.schema is None,
            schema=None if required else conversation.schema,
        )
        return call_grammar(rules, self.grammars.special)


def _has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(message.get("tool_calls") or message.get("role") == "tool" for message in messages)


def cache_points(
    tokenizer: Tokenizer, prompt: ChatPrompt, messages: Sequence[Mapping[str, Any]]
) -> tuple[int, ...]:
    """Positions up to which other requests are likely to agree: before the first user message, before the last."""
    ends: list[int] = []
    at = 0
    for index, message in enumerate(messages):
        content = message.get("content")
        found = prompt.text.find(content.strip(), at) if isinstance(content, str) and content.strip() else -1
        if found >= 0:
            if (message["role"] == "user" and not ends) or index == len(messages) - 1:
                ends.append(found)
            at = found
    ends, points, length = sorted(set(ends)), list[int](), 0
    for position, token in enumerate(prompt.token_ids):
        if not ends:
            break
        length += len(tokenizer.token_bytes(token))
        if length > ends[0]:
            points.append(position)
            ends.pop(0)
    return tuple(points)
