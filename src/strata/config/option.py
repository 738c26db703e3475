"""What a setting is, and how a class of them finds its values: flags, the environment, a file, defaults."""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from strata.errors import UsageError


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
    on_off: bool = False  # text for which a file may also say true or false

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
        if math.isfinite(self.high) and not self.open_low and not self.open_high:
            return f"from {_digits(self.low)} to {_digits(self.high)}"
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
            return (
                not self.pattern or re.fullmatch(self.pattern, str(value), re.ASCII) is not None
            )  # a number is its digits
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
        if isinstance(value, bool) and (self.on_off or {"on", "off"} <= {*self.choices}):
            value = "on" if value else "off"
        if self.pattern and type(value) in (int, float):
            value = str(value) if isinstance(value, int) else f"{value:.9f}".rstrip("0").rstrip(".")
        if type(value) is not self.type:
            raise UsageError(
                f"{self.toml} is {value!r}; it must be {_KINDS[self.type]}"
                + (f" ({self.limits})" if self.choices or self.pattern else "")
            )
        return value


_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_TRUTHS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def setting(default: Any, flag: str, help: str, toml: str = "", **more: Any) -> Any:
    """A field of a subclass of Settings; `more`: what else its Option says."""
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
