"""Options that several commands take, made from the table in strata.config."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from strata import env
from strata.config import OPTIONS, EngineOptions, Option
from strata.errors import UsageError

_FAR = 1e5  # limits beyond it are nobody's concern


def flag(name: str, default: str | None = None) -> Any:
    """Typer's option for a setting: a string that strata.config parses and checks, None when not given.

    `default`: in words, where a command has its own.
    """
    option = OPTIONS[name]
    is_flag = option.type is bool
    notes = [option.limits] if option.choices or option.pattern or option.high < _FAR else []
    notes += [f"default: {default or option.default_text}"] + ([f"env: {option.env}"] if option.env else [])
    return typer.Option(
        option.flag,
        *option.aliases,
        help=f"{option.help} [{'; '.join(notes)}]",
        show_default=False,
        metavar=None if is_flag else _metavar(option),
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
    )


def _metavar(option: Option) -> str:
    return {int: "N", float: "X"}.get(option.type, option.flag.strip("-").upper())


Model = Annotated[
    Path, typer.Option("--model", "-m", metavar="FILE", help="GGUF file (of a split model: any part).")
]
MaxTokens = Annotated[str | None, flag("max_tokens")]
LogitBias = Annotated[
    list[str] | None,
    typer.Option("--logit-bias", metavar="ID=X", help="Add X to the score of a token; repeatable."),
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; repeatable.")
]
System = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="System message of the conversation.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

COMPUTE = ("device", "backend", "threads", "isa", "kv")
MEMORY = (
    "ram_budget_gib", "expert_cache", "link_limit_gbps", "cpu_share", "pcie_share", "lookahead", "ngram_table",
    "exclusive", "kv_prefetch", "kv_resident", "offload_layers", "ram_limit_gib", "vram_limit_gib", "vram_reserve_mib",
    "trace_routes",
)  # fmt: skip
DRAFTS = ("mtp", "mtp_window", "lookup", "spec", "spec_min_p", "draft_vocab")
SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
)  # fmt: skip


def taking(*settings: str, before: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command: it has the flags of these settings too, before its parameter `before` or at the end.

    The command reads them from its context's `params`, so they are no parameters of the function.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)

        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: given[name] for name in own.parameters})

        added = [_parameter(name) for name in settings]
        parameters = list(own.parameters.values())
        at = list(own.parameters).index(before) if before else len(parameters)
        vars(run)["__signature__"] = own.replace(parameters=[*parameters[:at], *added, *parameters[at:]])
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    annotation = Annotated[str | None, flag(name)]
    return inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation
    )


def engine_options(given: Mapping[str, Any], **more: str) -> EngineOptions:
    """Settings from the flags given (None: not given), the environment, the defaults."""
    variables = env.settings()
    check_variables(variables)
    return EngineOptions.resolve({**given, **more}, variables)


def check_variables(variables: Mapping[str, str]) -> None:
    """UsageError for a STRATA_ variable that is no setting; suggests the nearest."""
    known = [option.env for option in OPTIONS.values() if option.env] + [*env.APART]
    for name in variables:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(f"{name} is no setting" + (f" (did you mean {near[0]}?)" if near else ""))


def count(name: str, help: str) -> Any:
    """Typer's option for a number that belongs to one command; `parse_count` reads its string."""
    return typer.Option(name, metavar="N", help=help)


def parse_count(name: str, text: str, low: int = 1) -> int:
    """A whole number of at least `low`; UsageError names the flag."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise UsageError(f"{name} is {text}; it must be a whole number of at least {low}")
    return value
