"""Reading the ops of a window in order: what rules for whole sublayers are made of."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.fuse import Lowering, Match, Window, fusion
from strata.backends.cuda.lower import Context, lower, pointer
from strata.backends.cuda.lower_wide import WIDE_ROWS
from strata.ops.buffers import Buffer, Weight
from strata.ops.linear import LinearF, LinearQ
from strata.ops.op import Op
from strata.ops.quantize import Quantize

T = TypeVar("T", bound=Op)


class Mismatch(Exception):
    """The ops are not the pattern, or the device has no room for its kernels."""


class Product(NamedTuple):
    """A linear op of either kind."""

    weight: Weight
    out: Buffer


def require(condition: bool) -> None:
    """Mismatch where the condition does not hold."""
    if not condition:
        raise Mismatch


def first_fitting(choices: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The first choice that fits; Mismatch where none does."""
    for choice in choices:
        if fits(choice):
            return choice
    raise Mismatch


class Pattern:
    """A place in the window that moves on with every op that is taken."""

    def __init__(self, window: Window):
        self._window = window
        self.ops: list[Op] = []  # taken so far
        self.q8: dict[Buffer, Buffer] = {}  # quantised forms, by what they are of

    @property
    def bucket(self) -> int:
        """Rows of the program."""
        return self._window.bucket

    def maybe(self, kind: type[T]) -> T | None:
        """The next op, where it is of that kind."""
        op = self._window.at(len(self.ops), kind)
        if op is not None:
            self.ops.append(op)
        return op

    def need(self, kind: type[T], condition: Callable[[T], bool] = lambda op: True) -> T:
        """The next op, of that kind, for which the condition holds; else Mismatch."""
        op = self.maybe(kind)
        if op is None or not condition(op):
            raise Mismatch
        return op

    def back(self, count: int) -> None:
        """Only the first `count` ops are taken."""
        del self.ops[count:]

    def quantised_form(self, x: Buffer) -> None:
        """Takes the quantisation of x, where that is next."""
        quantize = self.maybe(Quantize)
        if quantize is not None:
            require(quantize.x is x)
            self.q8[x] = quantize.out

    def product(self, x: Buffer) -> Product:
        """A linear op of x, and the quantisation of x where that comes first."""
        self.quantised_form(x)
        if (exact := self.maybe(LinearF)) is not None:
            require(exact.x is x)
            return Product(exact.weight, exact.out)
        op = self.need(LinearQ, lambda op: op.x is self.q8.get(x))
        return Product(op.weight, op.out)

    def planes(self, x: Buffer, at: Context) -> list[Arg]:
        """Addresses of x as q8; null where nobody asked for it."""
        return at.q8(self.q8[x]) if x in self.q8 else [pointer(0)] * 3

    def unread(self, buffer: Buffer) -> bool:
        """Whether nothing beyond what is taken reads the scratch buffer."""
        return self._window.unread_after(len(self.ops), buffer)

    def close(self, *results: Buffer) -> None:
        """Mismatch where an op outside reads what the pattern makes, results aside."""
        made = {b for op in self.ops for b in op.outputs if b.role == "scratch"} - set(results)
        require(all(self._window.unread_after(len(self.ops), b) for b in made))


Matcher = Callable[[Pattern], Lowering]


def sublayer(matcher: Matcher) -> Matcher:
    """Registers a rule that reads a pattern and gives its lowering; where that does not fit the device, ops are lowered
    one by one."""

    def rule(window: Window) -> Match | None:
        first = window.at(0, Op)
        rows = first.outputs[0].shape[0] if first is not None and first.outputs else 0
        if min(rows, window.bucket) >= WIDE_ROWS:  # a head's buffers have room for every sequence's rows
            return None  # of a prompt's rows each op has kernels of its own
        pattern = Pattern(window)
        try:
            lowering = matcher(pattern)
        except Mismatch:
            return None
        ops = list(pattern.ops)

        def launches(at: Context) -> list[Launch]:
            try:
                return lowering(at)
            except Mismatch:
                return [node for op in ops for node in lower(op, at)]

        return Match(len(ops), launches)

    fusion(rule)
    return matcher
