"""Every setting with its default, in one place: frozen dataclasses whose fields carry their names and limits.

A setting of the engine comes from its flag, else from `STRATA_<KEY>`, else from the default here; `resolve`
is the place for a configuration file. What one request asks for has flags only. `OPTIONS` is the table that
the command line and its help are made from.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from strata.errors import UsageError

MAX_THREADS = 1024


def _digits(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: the field's name inside, `section.key` in TOML, the flag, and what values it takes."""

    name: str
    flag: str
    help: str
    type: type
    default: Any
    toml: str = ""  # empty: belongs to a request, so neither a file nor the environment sets it
    variable: str = ""  # where the TOML key alone would not tell
    in_environment: bool = True  # a dozen variables at most: what a machine's plan decides has none
    aliases: tuple[str, ...] = ()  # flags that mean the same: names that other engines use
    choices: tuple[str, ...] = ()
    pattern: str = ""  # of text that is no choice from a list, with `limits_text` to say it in words
    limits_text: str = ""
    low: float = 0
    high: float = math.inf
    open_low: bool = False  # low itself is not allowed
    open_high: bool = False
    secret: bool = False  # never printed

    @property
    def env(self) -> str:
        """The environment variable: STRATA_ and the TOML key; empty where there is none."""
        if not self.toml or not self.in_environment:
            return ""
        return "STRATA_" + (self.variable or self.toml.rpartition(".")[2].upper())

    @property
    def default_text(self) -> str:
        """The default, for people."""
        return "none" if self.default == "" else str(self.default)

    @property
    def limits(self) -> str:
        """What is allowed, in words for help and errors; empty when anything is."""
        if self.choices or self.type is str:
            return self.limits_text or ", ".join(self.choices)
        if self.type is bool:
            return "true or false"
        above = f"{'above' if self.open_low else 'at least'} {_digits(self.low)}"
        below = f"{'below' if self.open_high else 'at most'} {_digits(self.high)}"
        return f"{above} and {below}" if math.isfinite(self.high) else above

    def check(self, value: Any) -> None:
        """Raise UsageError, with the value and the limits, when `value` cannot be used."""
        if self.choices:
            if value not in self.choices:
                near = difflib.get_close_matches(str(value), self.choices, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise UsageError(f"{self.flag} is {value}; it must be one of {self.limits}{hint}")
        elif not self._matches(value):
            raise UsageError(f"{self.flag} is {value}; it must be {self.limits}")

    def _matches(self, value: Any) -> bool:
        if self.type is str:
            return not self.pattern or re.fullmatch(self.pattern, value) is not None
        return isinstance(value, bool) if self.type is bool else self._inside(value)

    def _inside(self, value: float) -> bool:
        low = value > self.low if self.open_low else value >= self.low
        high = value < self.high if self.open_high else value <= self.high
        return low and high and math.isfinite(value)

    def parse(self, text: str | bool, source: str) -> Any:
        """Value of a string that `source` (the flag or the variable) gave; a flag without a value gives True."""
        if self.type is bool:
            return self._truth(text, source)
        try:
            return self.type(text)
        except ValueError:
            kind = "a whole number" if self.type is int else "a number"
            raise UsageError(f"{source} is {text!r}; it must be {kind}") from None

    @staticmethod
    def _truth(text: str | bool, source: str) -> bool:
        word = str(text).lower()
        if word not in _TRUTHS:
            raise UsageError(f"{source} is {text!r}; it must be one of {', '.join(_TRUTHS)}")
        return _TRUTHS[word]

    def from_file(self, value: Any) -> Any:
        """A value of a TOML file; whole numbers stand for reals, nothing else is converted."""
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.pattern and type(value) is int:
            value = str(value)
        if type(value) is not self.type:
            raise UsageError(
                f"{self.toml} is {value!r}; it must be {_KINDS[self.type]}"
                + (f" ({self.limits})" if self.choices else "")
            )
        return value


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_TRUTHS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def _option(default: Any, flag: str, help: str, toml: str = "", **more: Any) -> Any:
    return field(default=default, metadata={"flag": flag, "help": help, "toml": toml, **more})


class Settings:
    """Checks its fields when made, so that a settings object that exists is valid."""

    @classmethod
    def options(cls) -> tuple[Option, ...]:
        """The rows of the table that this class contributes."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
        return tuple(Option(f.name, type=type(f.default), default=f.default, **f.metadata) for f in fields)

    def __post_init__(self) -> None:
        for option in self.options():
            option.check(getattr(self, option.name))

    @classmethod
    def resolve(
        cls, flags: Mapping[str, Any], variables: Mapping[str, str], file: Mapping[str, Any] | None = None
    ) -> Self:
        """Settings from flags (strings by field name; None: not given), the environment, a file, the defaults."""
        found = cls.sources(flags, variables, file or {})
        return cls(**{name: value for name, (value, _) in found.items()})

    @classmethod
    def sources(
        cls, flags: Mapping[str, Any], variables: Mapping[str, str], file: Mapping[str, Any]
    ) -> dict[str, tuple[Any, str]]:
        """Each setting's value and where it came from: a flag, a variable, a key of the file, or the default."""
        found: dict[str, tuple[Any, str]] = {}
        for option in cls.options():
            if (text := flags.get(option.name)) is not None:
                found[option.name] = option.parse(text, option.flag), option.flag
            elif option.env in variables:
                found[option.name] = option.parse(variables[option.env], option.env), option.env
            elif option.toml in file:
                found[option.name] = option.from_file(file[option.toml]), f"[{option.toml}]"
            else:
                found[option.name] = option.default, "default"
        return found


@dataclass(frozen=True)
class EngineOptions(Settings):
    """How a model is run; none of these changes what the model is."""

    device: str = _option(
        "auto",
        "--device",
        "What computes; auto: the first GPU that can be used, else the CPU; N: GPU N.",
        toml="gpu.device_id",
        variable="DEVICE",
        pattern=r"auto|cpu|cuda|(cuda:)?\d{1,3}",
        limits_text="auto, cpu, cuda, cuda:N or N",
    )
    backend: str = _option(
        "auto",
        "--backend",
        "auto: the device's kernels; sim: the CPU as a GPU with memory tiers, for tests; reference: NumPy, plain "
        "float32; contract: NumPy, the kernels' arithmetic.",
        toml="infer.backend",
        choices=("auto", "cpu", "sim", "reference", "contract"),
    )
    threads: int = _option(
        0,
        "--threads",
        "CPU threads; 0: as many as the machine grants.",
        toml="infer.threads",
        low=0,
        high=MAX_THREADS,
    )
    isa: str = _option(
        "auto",
        "--isa",
        "Instruction set of the CPU kernels; auto: the best that this machine has.",
        toml="infer.isa",
        choices=("auto", "generic", "avx2", "avxvnni", "avx512"),
    )
    kv: str = _option(
        "auto",
        "--kv",
        "Type in which keys and values are kept; auto: f16 where the context fits, else int8.",
        toml="context.cache_dtype",
        choices=("auto", "f32", "f16", "int8", "k8v4", "q4"),
    )
    max_model_len: int = _option(
        0,
        "--max-context",
        "Longest context in tokens; 0: what the model was made for.",
        toml="context.context_length",
        aliases=("--max-model-len", "--ctx-size"),
        low=0,
        high=2**24,
    )
    prefill: int = _option(
        512,
        "--prefill",
        "Prompt tokens read at a time, in blocks of 64; 0: every token in the step form.",
        toml="infer.prefill",
        low=0,
        high=65536,
    )
    max_num_seqs: int = _option(
        1,
        "--parallel",
        "Sequences that may be generated at once.",
        toml="infer.decode_batch",
        aliases=("--max-num-seqs",),
        low=1,
        high=1024,
    )
    expert_cache: str = _option(
        "auto",
        "--expert-cache",
        "Experts that VRAM holds; auto: as many as fit.",
        toml="memory.expert_cache",
        in_environment=False,
    )
    kv_resident: int = _option(
        0,
        "--kv-resident",
        "Cells of layers with an indexer that VRAM holds; the others are fetched from RAM; 0: chosen by the plan.",
        toml="memory.kv_resident",
        in_environment=False,
        low=0,
        high=2**31,
    )
    ram_budget_gib: float = _option(
        0.0,
        "--ram-budget-gib",
        "RAM that experts may take; 0: what is left. Experts beyond it are read from the SSD.",
        toml="memory.ram_budget_gib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    trace_routes: str = _option(
        "",
        "--trace-routes",
        "File that receives which experts every row chooses (for `strata bench cache`).",
        toml="memory.trace_routes",
        in_environment=False,
    )
    ram_limit_gib: float = _option(
        0.0,
        "--ram-limit-gib",
        "RAM that the machine is taken to have; 0: what it reports.",
        toml="memory.ram_limit_gib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    vram_limit_gib: float = _option(
        0.0,
        "--vram-limit-gib",
        "VRAM that the GPU is taken to have; 0: what it reports.",
        toml="memory.vram_limit_gib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    vram_reserve_mib: float = _option(
        700.0,
        "--vram-reserve-mib",
        "VRAM that stays free.",
        toml="memory.vram_reserve_mib",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    link_limit_gbps: float = _option(
        0.0,
        "--link-limit-gbps",
        "GB per second that the link between RAM and GPU is taken to carry; 0: as measured.",
        toml="memory.link_limit_gbps",
        in_environment=False,
        low=0.0,
        high=1e6,
    )
    cpu_share: str = _option(
        "auto",
        "--cpu-share",
        "Share of the experts missing in VRAM that the CPU computes, 0 to 1; auto: by measured rates.",
        toml="memory.cpu_share",
        in_environment=False,
    )
    exclusive: str = _option(
        "off",
        "--exclusive",
        "on: experts that VRAM holds are the first to leave RAM, where RAM does not hold all.",
        toml="memory.exclusive",
        in_environment=False,
        choices=("on", "off"),
    )
    lookahead: str = _option(
        "on",
        "--lookahead",
        "Read experts ahead that the next layer's router names; it acts where RAM holds only some.",
        toml="memory.lookahead",
        in_environment=False,
        choices=("on", "off"),
    )
    ngram_table: str = _option(
        "auto",
        "--ngram-table",
        "Where rows of the n-gram table come from; auto: the file's map, or direct reads where experts are read.",
        toml="memory.ngram_table",
        in_environment=False,
        choices=("auto", "ram", "map", "direct"),
    )


@dataclass(frozen=True)
class SamplingOptions(Settings):
    """How one request chooses its tokens."""

    max_tokens: int = _option(256, "--max-tokens", "Most tokens to generate.", low=1, high=2**24)
    temperature: float = _option(0.0, "--temperature", "0: always the likeliest token.", low=0.0, high=100.0)
    top_k: int = _option(0, "--top-k", "Choose among the K likeliest tokens; 0: all.", low=0, high=2**31 - 1)
    top_p: float = _option(
        1.0,
        "--top-p",
        "Choose among the likeliest tokens that together reach this probability.",
        low=0.0,
        high=1.0,
        open_low=True,
    )
    min_p: float = _option(
        0.0,
        "--min-p",
        "Leave out tokens less likely than this share of the likeliest.",
        low=0.0,
        high=1.0,
        open_high=True,
    )
    repetition_penalty: float = _option(
        1.0,
        "--repeat-penalty",
        "Lowers the score of tokens that have occurred; 1: off.",
        aliases=("--repetition-penalty",),
        low=0.001,
        high=100.0,
    )
    presence_penalty: float = _option(
        0.0, "--presence-penalty", "Taken once from tokens already generated.", low=-100.0, high=100.0
    )
    frequency_penalty: float = _option(
        0.0, "--frequency-penalty", "Taken for each time a token was generated.", low=-100.0, high=100.0
    )
    seed: int = _option(
        0, "--seed", "The same seed, prompt and settings give the same text.", low=0, high=2**63 - 1
    )


@dataclass(frozen=True)
class ServingOptions(Settings):
    """How requests share an engine, and what is kept of their texts."""

    prompt_share: int = _option(
        35,
        "--prompt-share",
        "Percent of the time that reading prompts may take while answers are generated.",
        toml="infer.prompt_share",
        low=1,
        high=95,
    )
    max_queue: int = _option(
        0, "--max-queue", "Requests that may be open at once; 0: any number.", toml="server.max_queue"
    )
    max_per_key: int = _option(
        0,
        "--max-per-key",
        "Requests of one key that may be open at once; 0: any number.",
        toml="server.max_per_key",
    )
    conversation_cache_mib: int = _option(
        4096,
        "--conversation-cache-mib",
        "RAM for conversations beside the KV pool; less where less is left.",
        toml="sessions.conversation_cache_mib",
    )
    prompt_cache_every: int = _option(
        8192,
        "--prompt-cache-every",
        "Tokens of a prompt between two checkpoints of recurrent state.",
        toml="sessions.prompt_cache_every",
        low=64,
    )
    session_dir: str = _option(
        "",
        "--session-dir",
        "Directory in which conversations outlive the process; empty: none.",
        toml="sessions.session_dir",
    )
    session_mib: int = _option(
        32768, "--session-mib", "Space that session files may take.", toml="sessions.session_mib"
    )


@dataclass(frozen=True)
class ServerOptions(Settings):
    """Where the server listens and what it serves."""

    model: str = _option(
        "",
        "--model",
        "GGUF file (of a split model: any part).",
        toml="model.path",
        variable="MODEL",
        aliases=("-m",),
    )
    model_id: str = _option(
        "", "--model-id", "Name of the model in the protocol; empty: the file's.", toml="server.model_id"
    )
    host: str = _option(
        "127.0.0.1",
        "--host",
        "Address to listen on; beyond this machine a key is needed.",
        toml="server.host",
    )
    port: int = _option(
        8080, "--port", "Port to listen on; 0: one that is free.", toml="server.port", low=0, high=65535
    )
    api_key: str = _option(
        "",
        "--api-key",
        "Keys that clients must send, by commas; better set by the environment, for command lines can be read.",
        toml="server.api_key",
        secret=True,
    )
    api_key_file: str = _option("", "--api-key-file", "File with one key a line.", toml="server.api_key_file")
    allowed_hosts: str = _option(
        "",
        "--allowed-hosts",
        "Host names answered to, by commas, beside this machine's own; on another --host, empty: any.",
        toml="server.allowed_hosts",
    )
    cors_origins: str = _option(
        "",
        "--cors-origins",
        "Origins whose pages may ask, by commas; empty: only pages of this server.",
        toml="server.cors_origins",
    )
    heartbeat: float = _option(
        10.0,
        "--heartbeat",
        "Seconds of silence in a stream after which a sign of life is sent.",
        toml="server.heartbeat",
        low=0.0,
        high=15.0,
        open_low=True,
    )
    client_timeout: float = _option(
        60.0,
        "--client-timeout",
        "Seconds a client may take to go on with a request, or to read what waits for it.",
        toml="server.client_timeout",
        low=0.0,
        high=86400.0,
        open_low=True,
    )
    shutdown_timeout: float = _option(
        30.0,
        "--shutdown-timeout",
        "Seconds that running answers get when the server is told to stop.",
        toml="server.shutdown_timeout",
        low=0.0,
        high=86400.0,
    )
    step_timeout: float = _option(
        300.0,
        "--step-timeout",
        "Seconds after which a step counts as stuck, and requests end with an error; 0: never.",
        toml="server.step_timeout",
        low=0.0,
        high=86400.0,
    )
    idle_unload: float = _option(
        0.0,
        "--idle-unload",
        "Seconds without a request after which the model leaves memory until the next; 0: never.",
        toml="server.idle_unload",
        low=0.0,
        high=1e9,
    )
    max_body_mib: int = _option(
        16, "--max-body-mib", "Largest request body in MiB.", toml="server.max_body_mib", low=1, high=4096
    )
    repetition_limit: int = _option(
        0,
        "--repetition-limit",
        "Ends an answer whose last N tokens say the same again and again; 0: never.",
        toml="server.repetition_limit",
        low=0,
        high=2**20,
    )
    log_json: bool = _option(
        False, "--log-json", "Write the log as one JSON object a line.", toml="server.log_json"
    )


SETTINGS = (ServerOptions, EngineOptions, ServingOptions)  # what a configuration file may set
OPTIONS: dict[str, Option] = {
    o.name: o
    for cls in (EngineOptions, SamplingOptions, ServingOptions, ServerOptions)
    for o in cls.options()
}
