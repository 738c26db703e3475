"""Writing GGUF version 3 files: streamed, and under a temporary name until whole."""

import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from strata.errors import UsageError
from strata.gguf.metadata import StringArray
from strata.gguf.types import DEFAULT_ALIGNMENT, MAGIC, MAX_DIMENSIONS, SCALAR_CODES, TensorType, ValueType

Data: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, np.dtype[Any]]
TensorSpec: TypeAlias = tuple[str, Sequence[int], TensorType, Data | Iterable[Data]]
_DTYPE_TYPES = {np.dtype("<" + code): kind for kind, code in SCALAR_CODES.items()}
_ALIGNMENT_KEY = "general.alignment"


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its type said; for a list, nested or not, that of the innermost items."""

    value: Any
    type: ValueType


def write_model(
    path: str | Path,
    metadata: Mapping[str, Any],
    tensors: Iterable[TensorSpec],
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write (name, ne, type, data) tensors; data is bytes-like or an iterable of such.

    The file appears under its name only when it is complete. UsageError names what cannot be written.
    """
    path, specs = Path(path), list(tensors)
    if path.exists() and not path.is_file():  # /dev/null would become a file
        raise UsageError(f"{path}: is not a regular file")
    header = encode_header(metadata, specs, alignment)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        file = part.open("xb")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with file:
            file.write(header)
            for spec in specs:
                _write_tensor(file, spec, alignment)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def encode_header(metadata: Mapping[str, Any], specs: Sequence[TensorSpec], alignment: int) -> bytes:
    """Everything before the tensor data, padded to the alignment."""
    if alignment < 8 or alignment & (alignment - 1) or alignment >= 2**32:
        raise UsageError(f"alignment is {alignment}; it must be a power of two from 8 to 2^31")
    entries = {key: value for key, value in metadata.items() if key != _ALIGNMENT_KEY}
    if alignment != DEFAULT_ALIGNMENT:
        entries[_ALIGNMENT_KEY] = Typed(alignment, ValueType.UINT32)
    parts = [MAGIC, struct.pack("<IQQ", 3, len(specs), len(entries))]
    for key, value in entries.items():
        parts += [_string(key), *_encode_value(key, value)]
    offset, seen = 0, set[str]()
    for name, ne, kind, _ in specs:
        if name in seen or not name:
            raise UsageError(f"tensor name {name!r} is empty or given twice")
        seen.add(name)
        dims = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
        parts += [_string(name), dims, struct.pack("<IQ", kind, offset)]
        offset = _aligned(offset + _tensor_bytes(name, ne, kind), alignment)
    header = b"".join(parts)
    return header + bytes(_aligned(len(header), alignment) - len(header))


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _tensor_bytes(name: str, ne: Sequence[int], kind: TensorType) -> int:
    if not 1 <= len(ne) <= MAX_DIMENSIONS or min(ne) < 1:
        raise UsageError(
            f"tensor {name!r}: shape {list(ne)} must be 1 to {MAX_DIMENSIONS} positive dimensions"
        )
    if ne[0] % kind.block_values:
        raise UsageError(
            f"tensor {name!r}: rows of {ne[0]} are not whole {kind.name} blocks of {kind.block_values}"
        )
    return kind.nbytes(prod(ne))


def _write_tensor(file: BinaryIO, spec: TensorSpec, alignment: int) -> None:
    name, ne, kind, data = spec
    wanted, written = _tensor_bytes(name, ne, kind), 0
    for chunk in _chunks(data):
        written += file.write(chunk)
    if written != wanted:
        raise UsageError(
            f"tensor {name!r}: {kind.name} {list(ne)} takes {wanted} bytes, {written} were given"
        )
    file.write(bytes(_aligned(wanted, alignment) - wanted))


def _chunks(data: Data | Iterable[Data]) -> Iterator[memoryview]:
    whole = isinstance(data, bytes | bytearray | memoryview | np.ndarray)
    for chunk in [data] if whole else data:
        flat = (
            np.ascontiguousarray(chunk).reshape(-1).view(np.uint8) if isinstance(chunk, np.ndarray) else chunk
        )
        yield memoryview(flat).cast("B")  # type: ignore[arg-type]  # the union is bytes-like here


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encode_value(key: str, value: Any) -> list[bytes]:
    """Type field and value."""
    kind = None
    if isinstance(value, Typed):
        value, kind = value.value, value.type
    if isinstance(value, list | tuple | np.ndarray | StringArray):
        return [struct.pack("<I", ValueType.ARRAY), *_encode_array(key, value, kind)]
    kind = _infer(key, value) if kind is None else kind
    return [struct.pack("<I", kind), _encode_scalar(key, value, kind)]


def _encode_array(key: str, value: Any, kind: ValueType | None) -> list[bytes]:
    """Item type, count and items."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            return _encode_array(key, list(value), kind)
        kind = _DTYPE_TYPES.get(value.dtype.newbyteorder("<")) if kind is None else kind
        if kind is None or kind not in SCALAR_CODES:
            raise UsageError(f"metadata {key!r}: an array of {value.dtype} cannot be written")
        items = value.astype("<" + SCALAR_CODES[kind])
        if not np.array_equal(items, value, equal_nan=items.dtype.kind == "f") and items.dtype.kind != "f":
            raise UsageError(f"metadata {key!r}: values do not fit {kind.name}")
        return [struct.pack("<IQ", kind, len(items)), items.tobytes()]
    if any(isinstance(item, list | tuple | np.ndarray) for item in value):
        nested = [part for item in value for part in _encode_array(key, item, kind)]
        return [struct.pack("<IQ", ValueType.ARRAY, len(value)), *nested]
    if kind is None:
        if not len(value) and not isinstance(value, StringArray):
            raise UsageError(f"metadata {key!r}: an empty list needs its type: Typed([], ValueType.INT32)")
        kind = _infer_items(key, value)
    return [struct.pack("<IQ", kind, len(value)), *(_encode_scalar(key, item, kind) for item in value)]


def _infer_items(key: str, items: Iterable[Any]) -> ValueType:
    if isinstance(items, StringArray):
        return ValueType.STRING
    kinds = {_infer(key, item) for item in items}
    if len(kinds) == 1:
        return kinds.pop()
    # Integers of several sizes share one that holds them all: INT64 if any is negative.
    if kinds <= {ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64}:
        signed = kinds & {ValueType.INT32, ValueType.INT64}
        return ValueType.INT64 if signed else ValueType.UINT64
    raise UsageError(f"metadata {key!r}: one list cannot hold {' and '.join(sorted(k.name for k in kinds))}")


def _infer(key: str, value: Any) -> ValueType:
    """The type that a plain Python or NumPy scalar is written as: 32 bits where it fits."""
    if isinstance(value, np.generic) and value.dtype in _DTYPE_TYPES:
        return _DTYPE_TYPES[value.dtype]
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        if value < 0:
            return ValueType.INT32 if value >= -(2**31) else ValueType.INT64
        return ValueType.UINT32 if value < 2**32 else ValueType.UINT64
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, str):
        return ValueType.STRING
    raise UsageError(f"metadata {key!r}: a {type(value).__name__} cannot be written")


def _encode_scalar(key: str, value: Any, kind: ValueType) -> bytes:
    try:
        if kind == ValueType.STRING:
            return _string(value)
        return struct.pack("<" + SCALAR_CODES[kind], value)
    except (struct.error, AttributeError, OverflowError, KeyError):
        raise UsageError(f"metadata {key!r}: {value!r} does not fit {kind.name}") from None
