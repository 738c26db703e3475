"""The Jinja environment of chat templates: sandboxed, as Hugging Face renders them, and bounded.

Templates come with model files, so they are foreign code. They can reach nothing (`ImmutableSandboxedEnvironment`)
and every loop turn, call and filter is counted against the budget of the render.
"""

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes, runtime
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from strata.text.chat.budget import check_arguments, check_operands, check_result, current

_COUNT, _CONCAT = "strata_count", "strata_concat"


class RefusedError(jinja2.TemplateError):
    """A template called `raise_exception`: it will not render this conversation."""


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Instrument(NodeTransformer):
    """Passes what loops run over, and the operands of `~`, through filters that count and check."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _COUNT, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        operands = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(operands, _CONCAT, [], [], None, None, lineno=node.lineno)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Instrument().visit(super()._parse(source, name, filename))
        return tree

    def call(
        __self,  # not `self`: a template's own keyword argument may be called that
        __context: runtime.Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        current().tick()
        check_arguments(__obj, args, kwargs)
        return check_result(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _TemplateNamespace(Namespace):
    """`namespace()` whose attributes may not begin with an underscore, as Hugging Face has it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} begins with an underscore")


def build_environment() -> jinja2.Environment:
    """Environment with the settings, extensions and functions that Hugging Face gives chat templates.

    Source: transformers 5.24.0, `utils/chat_template_utils.py`. Nothing is evaluated while compiling.
    """
    sandbox = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    sandbox.filters["tojson"] = _to_json
    sandbox.filters = {name: _bounded(function) for name, function in sandbox.filters.items()}
    sandbox.filters |= {_COUNT: _count, _CONCAT: _concat}
    del sandbox.globals["lipsum"]
    sandbox.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _strftime_now,
        "namespace": _TemplateNamespace,
        "dict": _make_dict,
    }
    return sandbox


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is counted; `wraps` keeps jinja2's mark on filters that take a context first."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        current().tick()
        check_arguments(function, args, kwargs)
        return check_result(function(*args, **kwargs))

    return run


def _count(items: Iterable[Any]) -> Iterator[Any]:
    budget = current()
    for item in items:
        budget.tick()
        yield item


def _concat(operands: list[Any]) -> str:
    parts = [str(operand) for operand in operands]
    current().need(sum(map(len, parts)))
    return "".join(parts)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: nothing is escaped for HTML, as jinja2's own filter would."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    for mark in current().marks if ensure_ascii else "":
        text = text.replace(json.dumps(mark)[1:-1], mark)
    return text


def _refuse(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _make_dict(*args: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
    return dict(*args, **kwargs)
