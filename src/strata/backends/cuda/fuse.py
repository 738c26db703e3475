"""Neighbouring ops that one launch computes. Files fuse_*.py register rules here, as lower_*.py do for single ops.

A rule sees the ops from one place on and answers how many it takes and what launches them; the longest answer wins. A
group's buffers keep their places for the whole group, so that a kernel may read and write them in any order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.lower import Context, lower
from strata.ops.arena import Interval, place
from strata.ops.buffers import Buffer
from strata.ops.op import Op
from strata.ops.program import Program

Lowering = Callable[[Context], list[Launch]]
O = TypeVar("O", bound=Op)


@dataclass(frozen=True)
class Match:
    """The first `count` ops of a window, and their launches."""

    count: int
    launches: Lowering


@dataclass(frozen=True)
class Group:
    """Ops [begin, end) of a program."""

    begin: int
    end: int
    launches: Lowering


class Window:
    """The ops of a program from one place on, up to where no group may reach across."""

    def __init__(self, program: Program, begin: int, end: int, last_read: dict[Buffer, int]):
        self.bucket = program.bucket  # rows of the program
        self._ops, self._begin, self._end, self._last_read = program.ops, begin, end, last_read

    def at(self, i: int, kind: type[O]) -> O | None:
        """Op i of the window where it is of that kind."""
        if self._begin + i >= self._end:
            return None
        op = self._ops[self._begin + i]
        return op if isinstance(op, kind) else None

    def run(self, i: int, kind: type[O], most: int) -> list[O]:
        """Ops of that kind that follow one another from op i on, at most so many."""
        found: list[O] = []
        while len(found) < most and (op := self.at(i + len(found), kind)) is not None:
            found.append(op)
        return found

    def unread_after(self, count: int, buffer: Buffer) -> bool:
        """Whether nothing beyond the window's first `count` ops reads the scratch buffer, so that it need not exist."""
        return buffer.role == "scratch" and self._last_read.get(buffer, -1) < self._begin + count


Rule = Callable[[Window], Match | None]
_rules: list[Rule] = []


def fusion(rule: Rule) -> Rule:
    """Registers a rule."""
    _rules.append(rule)
    return rule


def groups(program: Program, fused: bool = True, borders: Iterable[int] = ()) -> list[Group]:
    """All ops of the program in order, in groups; none reaches across `borders` (op indices)."""
    last_read = {b: i for i, op in enumerate(program.ops) for b in op.inputs}
    ends = sorted({*borders, program.repeatable or 0, len(program)})
    found: list[Group] = []
    i = 0
    while i < len(program):
        window = Window(program, i, next(b for b in ends if b > i), last_read)
        matches = [m for rule in _rules if fused and (m := rule(window)) is not None]
        best = max(matches, key=lambda m: m.count, default=Match(1, _alone(program.ops[i])))
        found.append(Group(i, i + best.count, best.launches))
        i += best.count
    return found


def plan(program: Program, parts: Sequence[Group]) -> tuple[dict[Buffer, int], int]:
    """Offsets of the scratch buffers in an arena, and its bytes: a buffer lives as long as the groups that name it."""
    spans: dict[Buffer, Interval] = {}
    for g, part in enumerate(parts):
        for op in program.ops[part.begin : part.end]:
            for buffer in (*op.inputs, *op.outputs):
                if buffer.role == "scratch":
                    first = spans[buffer].first if buffer in spans else g
                    spans[buffer] = Interval(first, g, buffer.nbytes)
    border = next((g for g, part in enumerate(parts) if part.begin == program.repeatable), None)
    if border is not None:
        for buffer, span in spans.items():
            if span.first < border <= span.last:
                spans[buffer] = Interval(span.first, len(parts), span.nbytes)
    offsets, size = place(list(spans.values()))
    return dict(zip(spans, offsets, strict=True)), size


def _alone(op: Op) -> Lowering:
    return lambda at: lower(op, at)
