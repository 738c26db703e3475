"""What one render may spend: steps, seconds, and characters of any one string."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from strata.errors import ModelFileError

# A chat of 10,000 messages takes some 200,000 steps; a million tokens are about 5 million characters.
MAX_STEPS = 4_000_000
MAX_CHARS = 64_000_000
MAX_SECONDS = 20.0
MAX_INTEGER_BITS = 4096


@dataclass
class Budget:
    """Spent by one render in one thread; ModelFileError when it is gone."""

    max_steps: int = MAX_STEPS
    max_chars: int = MAX_CHARS
    max_seconds: float = MAX_SECONDS
    marks: str = ""  # characters that stand for protected ones (see protect.py)
    steps: int = 0
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.max_seconds

    def tick(self) -> None:
        """Count one loop turn, call or filter."""
        self.steps += 1
        if self.steps > self.max_steps:
            raise ModelFileError(f"chat template takes more than {self.max_steps} steps")
        if time.monotonic() > self.deadline:
            raise ModelFileError(f"chat template takes more than {self.max_seconds:g} s")

    def need(self, chars: int) -> None:
        """Refuse a string or list of this length."""
        if chars > self.max_chars:
            raise ModelFileError(f"chat template makes {chars} characters, {self.max_chars} are allowed")


_CURRENT: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    """Budget of the render that runs in this thread; a fresh one while a template is compiled."""
    return _CURRENT.get(None) or Budget()


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Make `budget` the current one."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def check_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse a string method or filter whose result would be far longer than its arguments."""
    estimate = _ESTIMATES.get(getattr(function, "__name__", ""))
    if estimate:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        values = [getattr(method, "__self__", None), *args, *kwargs.values()]
        strings = [value for value in values if isinstance(value, str)]
        lists = [list(v.values()) if isinstance(v, dict) else v for v in values]
        items = [item for value in lists if isinstance(value, list | tuple) for item in value]
        widest = max((value for value in values if isinstance(value, int)), default=0)
        current().need(estimate(strings or [""], items, widest))


def _replaced(strings: list[str], _items: list[Any], _widest: int) -> int:
    whole, old, new = (*strings, "", "")[:3]
    return len(whole) + whole.count(old) * len(new)


def _joined(strings: list[str], items: list[Any], _widest: int) -> int:
    return len(items) * max(map(len, strings)) + sum(len(item) for item in items if isinstance(item, str))


def _formatted(strings: list[str], items: list[Any], widest: int) -> int:
    """Widths may stand in the format, or be values where the format says so with `*` or a nested field."""
    form = strings[0]
    nested = bool(_NESTED.search(form))
    fields = [form] if nested else _FIELDS.findall(form)
    widths = [int(digits[:12]) for field in fields for digits in re.findall("[0-9]+", field)]
    values = [value for value in items if isinstance(value, int)]
    return sum(widths) + (max(widest, *values, 0) if nested else 0)


# A field whose width or precision is another value; what says the width of the others.
_NESTED = re.compile(r"\{[^{}]*\{|%[^A-Za-z%]*\*")
_FIELDS = re.compile(r"%(?:\([^)]*\))?[^A-Za-z%]*|\{[^{}:]*:[^{}]*")

# Function name (methods of str, filters of jinja2): characters of the result from strings, list items, largest integer.
_ESTIMATES: dict[str, Callable[[list[str], list[Any], int], int]] = {
    **dict.fromkeys(("ljust", "rjust", "center", "zfill", "do_center"), lambda s, i, w: w),
    **dict.fromkeys(("do_batch", "sync_do_slice", "do_slice"), lambda s, i, w: w),
    "expandtabs": lambda s, i, w: s[0].count("\t") * (w or 8),
    "do_indent": lambda s, i, w: (s[0].count("\n") + 1) * max(w, *map(len, s[1:]), 4, 0),
    **dict.fromkeys(("replace", "do_replace"), _replaced),
    **dict.fromkeys(("join", "sync_do_join", "do_join"), _joined),
    **dict.fromkeys(("format", "format_map", "do_format"), _formatted),
}


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse `+ * ** %` whose result would be too long."""
    if operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            current().need(len(left) + len(right))
    elif operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                current().need(len(sequence) * count)
        _check_bits(left, right, _bits(left) + _bits(right))
    elif operator == "**":
        _check_bits(left, right, _bits(left) * right if isinstance(right, int) else 0)
    elif isinstance(left, str):  # "%1000000d" % value
        values = list(right) if isinstance(right, tuple) else [right]
        current().need(_formatted([left], values, 0))


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _check_bits(left: Any, right: Any, bits: int) -> None:
    if isinstance(left, int) and isinstance(right, int) and bits > MAX_INTEGER_BITS:
        raise ModelFileError(f"chat template makes an integer of {bits} bits, {MAX_INTEGER_BITS} are allowed")


def check_result(value: Any) -> Any:
    """The value, unless it is too long a string."""
    if isinstance(value, str):
        current().need(len(value))
    return value
