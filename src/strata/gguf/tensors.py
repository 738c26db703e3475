"""Tensor records: names, shapes, types and places, all checked against the file."""

from dataclasses import dataclass
from itertools import pairwise

from strata.gguf.source import Cursor, Source, shown
from strata.gguf.types import MAX_DIMENSIONS, TensorType

# Name length, a one-byte name, dimension count, one dimension, type, offset.
LEAST_RECORD_BYTES = 8 + 1 + 4 + 8 + 4 + 8
LARGEST = 2**63 - 1
# Another project's files use the id of Q2_0 for blocks of 128 values in 34 bytes (MODEL_SPEC section 4).
FORK_Q2_0_VALUES, FORK_Q2_0_BYTES = 128, 34


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's record: `ne` in GGUF order (input dimension first), `offset` from its shard's first byte."""

    name: str
    ne: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int
    shard: int = 0

    @property
    def values(self) -> int:
        """Number of values: the product of the dimensions."""
        return self.nbytes // self.type.block_bytes * self.type.block_values


@dataclass(frozen=True, slots=True)
class _Record:
    """A record as read: `offset` counts from the start of the data, `at` is where its field lies."""

    name: str
    ne: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int
    at: int


def read_tensors(cursor: Cursor, count: int, alignment: int, shard: int) -> dict[str, TensorInfo]:
    """Read `count` records and check the layout of the data behind them."""
    records: dict[str, _Record] = {}
    for index in range(count):
        at = cursor.at
        record = _read_record(cursor, index)
        if record.name in records:
            raise cursor.source.fault(f"tensor {shown(record.name)}", at, "the name appears twice")
        records[record.name] = record
    start = -(-cursor.at // alignment) * alignment
    _check_layout(cursor.source, list(records.values()), start, alignment)
    return {
        r.name: TensorInfo(r.name, r.ne, r.type, start + r.offset, r.nbytes, shard) for r in records.values()
    }


def _read_record(cursor: Cursor, index: int) -> _Record:
    at = cursor.at
    name = cursor.string(f"name of tensor {index}")
    if not name:
        raise cursor.source.fault(f"name of tensor {index}", at, "is empty")
    field = f"tensor {shown(name)}"
    ne = _read_dimensions(cursor, field)
    kind = _read_type(cursor, field)
    values = 1
    for size in ne:
        values *= size
    if ne[0] % kind.block_values:
        problem = f"rows of {ne[0]} values are not whole {kind.name} blocks of {kind.block_values}"
        raise cursor.source.fault(field, at, problem)
    if (nbytes := kind.nbytes(values)) > LARGEST:
        raise cursor.source.fault(field, at, f"shape {list(ne)} overflows 64 bits")
    offset_at = cursor.at
    return _Record(name, ne, kind, cursor.u64(f"offset of {field}"), nbytes, offset_at)


def _read_dimensions(cursor: Cursor, field: str) -> tuple[int, ...]:
    at = cursor.at
    count = cursor.u32(f"dimension count of {field}")
    if count > MAX_DIMENSIONS:
        problem = f"{count}; at most {MAX_DIMENSIONS} are allowed"
        raise cursor.source.fault(f"dimension count of {field}", at, problem)
    ne, product = [], 1
    for axis in range(count):
        at = cursor.at
        size = cursor.u64(f"dimension {axis} of {field}")
        product *= size
        if not 0 < product <= LARGEST:
            problem = f"{size} makes the shape empty" if size == 0 else f"{size} overflows 64 bits"
            raise cursor.source.fault(f"dimension {axis} of {field}", at, problem)
        ne.append(size)
    return tuple(ne) or (1,)  # no dimensions: a single value


def _read_type(cursor: Cursor, field: str) -> TensorType:
    at = cursor.at
    number = cursor.u32(f"type of {field}")
    try:
        return TensorType(number)
    except ValueError:
        raise cursor.source.fault(f"type of {field}", at, f"unknown tensor type id {number}") from None


def _check_layout(source: Source, records: list[_Record], start: int, alignment: int) -> None:
    """Every tensor aligned, inside the file, and apart from every other."""
    for r in records:
        if r.offset % alignment:
            problem = f"{r.offset} is not a multiple of the alignment {alignment}"
            raise source.fault(f"offset of tensor {shown(r.name)}", r.at, problem)
    records = sorted(records, key=lambda r: r.offset)
    for here, after in pairwise(records):
        if here.nbytes > (room := after.offset - here.offset):
            _check_fork_q2_0(source, here, room, alignment)
            problem = (
                f"{here.nbytes} bytes at {here.offset} overlap tensor {shown(after.name)} at {after.offset}"
            )
            raise source.fault(f"offset of tensor {shown(here.name)}", here.at, problem)
    if not records:
        return
    last = records[-1]
    if last.nbytes > (room := source.size - start - last.offset):
        _check_fork_q2_0(source, last, room, alignment)
        needed = start + last.offset + last.nbytes
        problem = f"truncated, or a wrong offset: needs {needed} bytes, the file has {source.size}"
        raise source.fault(f"offset of tensor {shown(last.name)}", last.at, problem)


def _check_fork_q2_0(source: Source, record: _Record, room: int, alignment: int) -> None:
    """Say so when the room a Q2_0 tensor has is that of the other project's blocks of the same id."""
    if record.type != TensorType.Q2_0 or record.ne[0] % FORK_Q2_0_VALUES:
        return
    fork = record.nbytes // TensorType.Q2_0.block_bytes * TensorType.Q2_0.block_values
    fork = fork // FORK_Q2_0_VALUES * FORK_Q2_0_BYTES
    if fork <= room < fork + alignment:
        problem = (
            f"the data takes {room} bytes, which fits blocks of 128 values in 34 bytes: a fork's format with "
            f"Q2_0's id; Q2_0 is 64 values in 18 bytes ({record.nbytes} bytes here)"
        )
        raise source.fault(f"type of tensor {shown(record.name)}", record.at - 4, problem)
