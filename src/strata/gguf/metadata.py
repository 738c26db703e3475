"""Metadata: checked when the file is opened, decoded when touched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from strata import _native
from strata.errors import ModelFileError
from strata.gguf.source import Cursor, Source, shown
from strata.gguf.types import MAX_ARRAY_DEPTH, SCALAR_CODES, ValueType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Value: TypeAlias = "bool | int | float | str | Array | StringArray | list[Value]"
T = TypeVar("T")

KIND_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    np.ndarray: "an array of numbers",
    list: "an array of arrays",
}
# Key length, a one-byte key, the value's type, a one-byte value.
LEAST_ENTRY_BYTES = 8 + 1 + 4 + 1
MAX_KEY_BYTES = 65535
REQUIRED: Any = object()


class StringArray(Sequence[str]):
    """An array of strings left in the file; items are decoded when asked for."""

    def __init__(self, source: Source, field: str, at: int, count: int) -> None:
        self._source, self._field, self._at, self._count = source, field, at, count

    @cached_property
    def _offsets(self) -> Array:
        """Where each record starts and the last one ends, int64 [count + 1]."""
        out = np.empty(self._count + 1, np.int64)
        source = self._source
        if not _native.gguf_string_offsets(
            source.address, source.size, self._at, self._count, int(out.ctypes.data)
        ):
            raise source.fault(self._field, self._at, "changed since the file was opened")
        return out

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        index = range(self._count)[index]
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError as error:
            at = int(self._offsets[index]) + 8 + error.start
            raise self._source.fault(f"{self._field}[{index}]", at, f"not UTF-8: {error.reason}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def raw(self, index: int) -> bytes:
        """The bytes of one string, whatever they are."""
        index = range(self._count)[index]
        return self._source.view[int(self._offsets[index]) + 8 : int(self._offsets[index + 1])].tobytes()

    def to_list(self) -> list[str]:
        """All strings at once, in one native call."""
        try:
            return _native.gguf_decode_strings(
                self._source.address, int(self._offsets.ctypes.data), self._count
            )
        except UnicodeDecodeError:
            return [self[i] for i in range(self._count)]  # raises the error that names the item


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a value lies: its type, and the byte after the type field."""

    type: ValueType
    at: int


class Metadata(Mapping[str, Value]):
    """Key to Python scalar or string, read-only NumPy view, `StringArray`, or list of nested arrays."""

    def __init__(self, source: Source, entries: dict[str, Entry]) -> None:
        self._source, self._entries = source, entries
        self._arrays: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        entry = self._entries[key]
        if entry.type != ValueType.ARRAY:
            return _decode(Cursor(self._source, entry.at), entry.type, _field(key))
        if key not in self._arrays:
            self._arrays[key] = _decode(Cursor(self._source, entry.at), entry.type, _field(key))
        return self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def types(self, key: str) -> tuple[ValueType, ...]:
        """The type of a value as the file has it; an array adds its item type (and so on inwards)."""
        entry = self._entries[key]
        found, cursor = [entry.type], Cursor(self._source, entry.at)
        while found[-1] == ValueType.ARRAY:
            found.append(ValueType(cursor.u32(_field(key))))
            if cursor.u64(_field(key)) == 0:
                break
        return tuple(found)

    def value(self, key: str, kind: type[T], default: T = REQUIRED) -> T:
        """The value if it is of `kind` (bool, int, float, str, np.ndarray, StringArray), else a typed error.

        A missing key gives `default`, or an error when there is none.
        """
        if key not in self._entries:
            if default is REQUIRED:
                raise ModelFileError(f"{self._source.path}: metadata has no {key!r}")
            return default
        value = self[key]
        if type(value) is not kind:
            found = " of ".join(part.name for part in self.types(key))
            wanted = KIND_NAMES.get(kind, "an array of strings")
            raise self._source.fault(_field(key), self._entries[key].at, f"is {found}, wanted {wanted}")
        return value


def _field(key: str) -> str:
    return f"metadata {shown(key)}"


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Walk `count` entries, checking every type, length and name, and remember where the values are."""
    source, entries = cursor.source, dict[str, Entry]()
    for index in range(count):
        at = cursor.at
        key = _read_key(cursor, index)
        if key in entries:
            raise source.fault(_field(key), at, "the key appears twice")
        kind = _read_type(cursor, f"type of {_field(key)}")
        entries[key] = Entry(kind, cursor.at)
        _skip(cursor, kind, _field(key))
    return Metadata(source, entries)


def _read_key(cursor: Cursor, index: int) -> str:
    at = cursor.at
    key = cursor.string(f"metadata key {index}")
    if not 0 < cursor.at - at - 8 <= MAX_KEY_BYTES:
        problem = f"takes {cursor.at - at - 8} bytes; 1 to {MAX_KEY_BYTES} are allowed"
        raise cursor.source.fault(f"metadata key {index}", at, problem)
    return key


def _read_type(cursor: Cursor, field: str) -> ValueType:
    at = cursor.at
    number = cursor.u32(field)
    if number > max(ValueType):
        raise cursor.source.fault(field, at, f"unknown value type {number}; 0 to 12 are known")
    return ValueType(number)


def _skip(cursor: Cursor, kind: ValueType, field: str) -> None:
    if kind == ValueType.ARRAY:
        _skip_array(cursor, field)
    elif kind == ValueType.STRING:
        cursor.skip_string(field)
    elif kind == ValueType.BOOL:
        at = cursor.at
        if (value := cursor.scalar("B", field)) > 1:
            raise cursor.source.fault(field, at, f"a boolean holds {value}; 0 and 1 are allowed")
    else:
        cursor.scalar(SCALAR_CODES[kind], field)


def _skip_array(cursor: Cursor, field: str) -> None:
    source = cursor.source
    at, fault = _native.gguf_skip_array(source.address, source.size, cursor.at, MAX_ARRAY_DEPTH)
    if fault:
        problem = {
            1: f"a count or length passes the end of the file ({source.size} bytes)",
            2: "unknown item type",
            3: f"arrays nest deeper than {MAX_ARRAY_DEPTH}",
            4: "a boolean is neither 0 nor 1",
        }[fault]
        raise source.fault(f"array {field}", at, problem)
    cursor.at = at


def _decode(cursor: Cursor, kind: ValueType, field: str) -> Value:
    """The value at the cursor, which `_skip` has checked."""
    if kind == ValueType.STRING:
        return cursor.string(field)
    if kind != ValueType.ARRAY:
        value: bool | int | float = cursor.scalar(SCALAR_CODES[kind], field)
        return value
    item = _read_type(cursor, field)
    count = cursor.u64(field)
    if item == ValueType.STRING:
        start = cursor.at
        strings = StringArray(cursor.source, field, start, count)
        return strings
    if item == ValueType.ARRAY:
        return [_decode_nested(cursor, field) for _ in range(count)]
    dtype = np.dtype("<" + SCALAR_CODES[item])
    cursor.need(count * dtype.itemsize, field)
    return np.frombuffer(cursor.source.raw, dtype, count, cursor.at) if count else np.empty(0, dtype)


def _decode_nested(cursor: Cursor, field: str) -> Value:
    start = cursor.at
    value = _decode(cursor, ValueType.ARRAY, field)
    cursor.at = start
    _skip_array(cursor, field)
    return value
