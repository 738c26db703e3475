"""Checkpoints in safetensors: shards mapped when first needed, tensors read in pieces."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import ModelFileError, UnsupportedError

Floats = NDArray[np.float32]
Index = NDArray[np.int64]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# The format's own bound on its header (safetensors, README "Format").
MAX_HEADER_BYTES = 100_000_000
PIECE_VALUES = 1 << 22  # float32 values read at once: 16 MiB
# Name and NumPy type of each stored type. BF16 is read as its 16 bits, F8 types are refused by name.
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U8": "<u1",
    "BOOL": "|b1",
}
_KNOWN_SIZES = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "U32": 4, "U64": 8}


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies: its type by the format's name, and its shape, outermost dimension first."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int


class Checkpoint:
    """The tensors of a directory, under the names that `rename` gives them.

    Of a sharded one, only shards that hold a tensor asked for are opened.
    """

    def __init__(self, directory: str | Path, rename: Callable[[str], str] = str) -> None:
        self.directory = Path(directory)
        self._files = _weight_map(self.directory)
        self._stored_names = {rename(name): name for name in self._files}
        self._shards: dict[str, dict[str, Stored]] = {}
        self._maps: dict[Path, NDArray[np.uint8]] = {}

    @property
    def names(self) -> list[str]:
        """All tensor names, sorted."""
        return sorted(self._stored_names)

    def __contains__(self, name: object) -> bool:
        return name in self._stored_names

    def info(self, name: str) -> Stored:
        """The record of a tensor; ModelFileError when there is none."""
        if name not in self._stored_names:
            raise ModelFileError(f"{self.directory}: there is no tensor {name}")
        name = self._stored_names[name]
        file = self._files[name]
        if file not in self._shards:
            self._shards[file] = read_header(self.directory / file)
        stored = self._shards[file].get(name)
        if stored is None:
            raise ModelFileError(
                f"{self.directory / file}: lacks tensor {name}, which {INDEX_NAME} puts there"
            )
        return stored

    def raw(self, name: str) -> NDArray[Any]:
        """A view of the map as the file has it; BF16 as uint16 bits."""
        stored = self.info(name)
        if stored.dtype not in _DTYPES:
            raise UnsupportedError(
                f"{stored.path}: tensor {name} is {stored.dtype}; supported: {', '.join(_DTYPES)} "
                "(save the checkpoint in BF16 first)"
            )
        if stored.path not in self._maps:
            self._maps[stored.path] = np.memmap(stored.path, np.uint8, mode="r")
        dtype = np.dtype(_DTYPES[stored.dtype])
        end = stored.offset + prod(stored.shape) * dtype.itemsize
        return self._maps[stored.path][stored.offset : end].view(dtype).reshape(stored.shape)

    def floats(self, name: str, index: Any = None) -> Floats:
        """The tensor, or what a NumPy `index` picks of it, as float32."""
        rows = self.raw(name)
        rows = rows if index is None else rows[index]
        if self.info(name).dtype == "BF16":
            return (np.asarray(rows).astype(np.uint32) << 16).view(np.float32)
        return np.asarray(rows).astype(np.float32)

    def pieces(self, name: str, order: Index | None = None) -> Iterator[Floats]:
        """Rows (in `order`, if given) in pieces of at most PIECE_VALUES values."""
        shape = self.info(name).shape
        rows = shape[0] if order is None else len(order)
        step = max(1, PIECE_VALUES // max(1, prod(shape[1:])))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield self.floats(name, slice(start, stop) if order is None else order[start:stop])


def _weight_map(directory: Path) -> dict[str, str]:
    """Tensor name to file name, from the index or from the only file."""
    index = directory / INDEX_NAME
    if index.is_file():
        found = read_json(index).get("weight_map")
        if not isinstance(found, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in found.values()
        ):
            raise ModelFileError(f"{index}: weight_map must map tensor names to file names")
        return found
    single = directory / SINGLE_NAME
    if not single.is_file():
        raise ModelFileError(f"{directory}: has neither {INDEX_NAME} nor {SINGLE_NAME}")
    return dict.fromkeys(read_header(single), SINGLE_NAME)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file; ModelFileError when it is missing or something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ModelFileError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def read_header(path: Path) -> dict[str, Stored]:
    """Records of one file (u64 header size, JSON header, data), all checked against its size."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelFileError(f"{path}: a header of {length} bytes does not fit {size} bytes")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ModelFileError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ModelFileError(f"{path}: the header is not a JSON object")
    data = 8 + length
    return {
        name: _stored(path, name, entry, data, size)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _stored(path: Path, name: str, entry: Any, data: int, size: int) -> Stored:
    """One record: a known type, whole positive sizes, and exactly the bytes they take, inside the file."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        raise ModelFileError(f"{path}: tensor {name} has a malformed record") from None
    item = np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else _KNOWN_SIZES.get(dtype, 0)
    if not whole or not item:
        raise ModelFileError(
            f"{path}: tensor {name} has type {dtype!r} and shape {list(shape)}, not understood"
        )
    if end - begin != item * prod(shape) or data + end > size:
        raise ModelFileError(
            f"{path}: tensor {name} ({dtype} {list(shape)}) takes {item * prod(shape)} bytes; "
            f"its record says {begin} to {end} of {size - data}"
        )
    return Stored(dtype, shape, path, data + begin)
