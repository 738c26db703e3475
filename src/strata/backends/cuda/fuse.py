"""Several op records in fewer launches: a matcher looks at the ops of a program from one on and, where it knows their pattern,
gives launches for all of them. Bits do not change; what no matcher knows is lowered op by op."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from strata.backends.cuda.driver import Arg, Launch
from strata.backends.cuda.lower import Context, lower, pointer
from strata.ops.buffers import Buffer, Weight, plane_bytes
from strata.ops.linear import LinearF, LinearQ
from strata.ops.op import Op
from strata.ops.program import Program
from strata.ops.quantize import Quantize

T = TypeVar("T", bound=Op)


class Mismatch(Exception):
    """The ops are not the matcher's pattern."""


@dataclass(frozen=True)
class Product:
    """A linear op of either kind."""

    weight: Weight
    out: Buffer


class Pattern:
    """Reads ops in order; `need` raises Mismatch. What the ops read so far leave for each other has addresses of its own,
    so that launches may come in another order than the ops."""

    def __init__(self, program: Program, begin: int, at: Context):
        self.ops, self.begin, self.end = program.ops, begin, begin
        self.outer = at
        self._stop = min((m for m in program.marks.values() if m > begin), default=len(program.ops))
        self._places: dict[Buffer, int] = {}
        self.q8: dict[Buffer, Buffer] = {}  # quantised forms, by what they are of
        self.at = replace(at, buffer=self._address, planes=self._planes)

    def maybe(self, kind: type[T]) -> T | None:
        """The next op, where it is of that kind."""
        op = self.ops[self.end] if self.end < self._stop else None
        if not isinstance(op, kind):
            return None
        self.end += 1
        return op

    def need(self, kind: type[T], condition: Callable[[T], bool] = lambda op: True) -> T:
        """The next op, of that kind, for which the condition holds."""
        op = self.maybe(kind)
        if op is None or not condition(op):
            raise Mismatch
        return op

    def product(self, x: Buffer) -> Product:
        """A linear op of x, and the quantisation of x where that comes first."""
        quantize = self.maybe(Quantize)
        if quantize is not None:
            require(quantize.x is x)
            self.q8[x] = quantize.out
        if (exact := self.maybe(LinearF)) is not None:
            require(exact.x is x)
            return Product(exact.weight, exact.out)
        op = self.need(LinearQ, lambda op: op.x is self.q8.get(x))
        return Product(op.weight, op.out)

    def quantised(self, x: Buffer) -> list[Arg]:
        """The planes of x as q8; null pointers where nobody asked for them."""
        return self.at.q8(self.q8[x]) if x in self.q8 else [pointer(0)] * 3

    def rest(self, begin: int) -> list[Launch]:
        """Launches of ops [begin, end) of the pattern, op by op."""
        return [launch for op in self.ops[begin : self.end] for launch in lower(op, self.at)]

    def close(self, *results: Buffer) -> None:
        """Mismatch where an op outside reads what is inside, results aside."""
        inside = {b for op in self.ops[self.begin : self.end] for b in op.outputs if b.role == "scratch"}
        inside -= set(results)
        outside = [*self.ops[: self.begin], *self.ops[self.end :]]
        require(not any(b in inside for op in outside for b in op.inputs))

    def _internal(self, buffer: Buffer) -> bool:
        ops = self.ops[self.begin : self.end]
        last = ops[-1].outputs
        return buffer.role == "scratch" and any(buffer in op.outputs for op in ops) and buffer not in last

    def _address(self, buffer: Buffer) -> int:
        if not self._internal(buffer):
            return self.outer.buffer(buffer)
        if buffer not in self._places:
            self._places[buffer] = self.outer.scratch(buffer.nbytes)
        return self._places[buffer]

    def _planes(self, buffer: Buffer) -> tuple[int, int, int]:
        codes, scales, _ = plane_bytes(buffer.shape)
        at = self._address(buffer)
        return at, at + codes, at + codes + scales


def require(condition: bool) -> None:
    """Mismatch where the condition does not hold."""
    if not condition:
        raise Mismatch


Matcher = Callable[[Pattern], list[Launch]]
MATCHERS: list[Matcher] = []


def lowered(program: Program, at: Context, done: Callable[[], None]) -> Iterator[tuple[int, list[Launch]]]:
    """(number of ops, their launches) in order; calls `done` after each, when scratch memory may be used again."""
    i = 0
    while i < len(program.ops):
        count, launches = _fused(program, i, at) or (1, lower(program.ops[i], at))
        done()
        yield count, launches
        i += count


def _fused(program: Program, i: int, at: Context) -> tuple[int, list[Launch]] | None:
    for matcher in MATCHERS:
        pattern = Pattern(program, i, at)
        try:
            launches = matcher(pattern)
        except Mismatch:
            continue
        return pattern.end - i, launches
    return None


def first_fitting(choices: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The first choice that fits; Mismatch where none does."""
    for choice in choices:
        if fits(choice):
            return choice
    raise Mismatch
