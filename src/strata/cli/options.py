"""Options that several commands take, made from the table in strata.config."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from strata import env
from strata.config import OPTIONS, EngineOptions, Option
from strata.errors import UsageError


def flag(name: str, default: str | None = None) -> Any:
    """Typer's option for a setting: a string that strata.config parses and checks, None when not given.

    `default`: in words, where a command has its own.
    """
    option = OPTIONS[name]
    is_flag = option.type is bool
    notes = [option.limits] if option.choices else []
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
Device = Annotated[str | None, flag("device")]
Backend = Annotated[str | None, flag("backend")]
Threads = Annotated[str | None, flag("threads")]
Isa = Annotated[str | None, flag("isa")]
Kv = Annotated[str | None, flag("kv")]
MaxContext = Annotated[str | None, flag("max_model_len")]
Prefill = Annotated[str | None, flag("prefill")]
RamBudget = Annotated[str | None, flag("ram_budget_gib")]
ExpertCache = Annotated[str | None, flag("expert_cache")]
LinkLimit = Annotated[str | None, flag("link_limit_gbps")]
CpuShare = Annotated[str | None, flag("cpu_share")]
Lookahead = Annotated[str | None, flag("lookahead")]
NgramTable = Annotated[str | None, flag("ngram_table")]
Exclusive = Annotated[str | None, flag("exclusive")]
KvResident = Annotated[str | None, flag("kv_resident")]
RamLimit = Annotated[str | None, flag("ram_limit_gib")]
VramLimit = Annotated[str | None, flag("vram_limit_gib")]
VramReserve = Annotated[str | None, flag("vram_reserve_mib")]
TraceRoutes = Annotated[str | None, flag("trace_routes")]
MaxTokens = Annotated[str | None, flag("max_tokens")]
Temperature = Annotated[str | None, flag("temperature")]
TopK = Annotated[str | None, flag("top_k")]
TopP = Annotated[str | None, flag("top_p")]
MinP = Annotated[str | None, flag("min_p")]
RepetitionPenalty = Annotated[str | None, flag("repetition_penalty")]
PresencePenalty = Annotated[str | None, flag("presence_penalty")]
FrequencyPenalty = Annotated[str | None, flag("frequency_penalty")]
Seed = Annotated[str | None, flag("seed")]
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


def engine_options(given: Mapping[str, Any], **more: str) -> EngineOptions:
    """Settings from the flags given (None: not given), the environment, the defaults."""
    variables = env.settings()
    check_variables(variables)
    return EngineOptions.resolve({**given, **more}, variables)


def check_variables(variables: Mapping[str, str]) -> None:
    """UsageError for a STRATA_ variable that is no setting; suggests the nearest."""
    known = [option.env for option in OPTIONS.values() if option.env] + ["STRATA_LOG"]
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
