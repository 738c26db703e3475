"""Lazily read tensors: a shape, and float32 pieces in order; nothing is read before it is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

import numpy as np

from strata.convert.checkpoint import Checkpoint, Floats, Index
from strata.errors import ModelFileError


class Plane(Enum):
    """What a tensor is for, which decides its type."""

    FLOAT = "norms, router, convolutions, recurrence, gates"
    INDEXER = "indexer"
    HEAD = "embedding and head"
    TABLE = "n-gram table"
    MIXER = "stream mixers and n-gram projections"
    DENSE = "attention and dense layers"
    EXPERT = "experts"


@dataclass(frozen=True)
class Rows:
    """A tensor to be: names it is made from, shape with rows first, and what yields its values in order."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Floats]]

    def map(self, function: Callable[[Floats], Floats]) -> "Rows":
        """Each piece through `function`, which keeps its size."""
        return replace(self, pieces=lambda: (function(piece) for piece in self.pieces()))

    def reshape(self, *shape: int) -> "Rows":
        """The same values under another shape."""
        if prod(shape) != prod(self.shape):
            raise ModelFileError(f"{self.names[0]}: shape {list(self.shape)} does not fit {list(shape)}")
        return replace(self, shape=shape)


@dataclass(frozen=True)
class Planned:
    """A tensor of the GGUF file."""

    name: str
    plane: Plane
    rows: Rows


def rows_of(checkpoint: Checkpoint, name: str, order: Index | None = None) -> Rows:
    """A stored tensor; `order` picks its rows."""
    shape = checkpoint.info(name).shape
    if order is not None:
        if not shape or int(order.max()) >= shape[0]:
            raise ModelFileError(f"{name}: has {list(shape)}, expected at least {int(order.max()) + 1} rows")
        shape = (len(order), *shape[1:])
    return Rows((name,), shape, lambda: checkpoint.pieces(name, order))


def part_of(checkpoint: Checkpoint, name: str, rows: slice) -> Rows:
    """Rows from `rows` of each matrix of a stored [count, rows, k], one piece a matrix."""
    count, height, width = checkpoint.info(name).shape
    taken = len(range(*rows.indices(height)))
    return Rows(
        (name,), (count, taken, width), lambda: (checkpoint.floats(name, (i, rows)) for i in range(count))
    )


def stacked(parts: Sequence[Rows]) -> Rows:
    """Equal shapes as one tensor with a new outermost dimension."""
    shapes = {part.shape for part in parts}
    if len(shapes) != 1:
        found = sorted(list(shape) for shape in shapes)
        raise ModelFileError(f"{parts[0].names[0]} and its {len(parts) - 1} fellows differ in shape: {found}")
    return Rows(_names(parts), (len(parts), *parts[0].shape), lambda: _chain(parts))


def joined(parts: Sequence[Rows]) -> Rows:
    """One after the other along rows."""
    if len({part.shape[1:] for part in parts}) != 1:
        raise ModelFileError(f"{parts[0].names[0]}: parts differ in row shape, so they cannot be joined")
    return Rows(
        _names(parts), (sum(part.shape[0] for part in parts), *parts[0].shape[1:]), lambda: _chain(parts)
    )


def beside(left: Rows, right: Rows) -> Rows:
    """Two matrices of equal height as one, left columns first; both are held at once."""
    if left.shape[0] != right.shape[0]:
        raise ModelFileError(
            f"{left.names[0]}: {left.shape[0]} rows, {right.names[0]}: {right.shape[0]} rows"
        )

    def pieces() -> Iterator[Floats]:
        yield np.concatenate([np.concatenate(list(half.pieces())) for half in (left, right)], axis=1)

    return Rows(left.names + right.names, (left.shape[0], left.shape[1] + right.shape[1]), pieces)


def _names(parts: Sequence[Rows]) -> tuple[str, ...]:
    return tuple(name for part in parts for name in part.names)


def _chain(parts: Sequence[Rows]) -> Iterator[Floats]:
    for part in parts:
        yield from part.pieces()
