"""Routing traces: which experts every row of every step chose, in a compact file that grows step by step.

A line that says what it is, a line of JSON (RouteHeader), then frames: form (0 step, 1 chunk), rows and bytes as
little-endian u32, and a zlib stream of the rows' experts, sorted within a layer, as differences, low bytes first.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from strata.errors import ModelFileError, UsageError

MAGIC = b"STRATA ROUTES 1\n"
_FRAME = struct.Struct("<III")
_MOST = 1 << 30  # bytes of a frame's rows


@dataclass(frozen=True)
class RouteHeader:
    """Of the model that was traced; expert_bytes by layer."""

    num_experts: int
    experts_per_token: int
    expert_bytes: tuple[int, ...]

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        return len(self.expert_bytes)


@dataclass(frozen=True)
class RouteFrame:
    """One step: experts uint16 [rows, layers, k], ascending in a layer."""

    chunk: bool
    experts: NDArray[np.uint16]


class RouteWriter:
    """Writes a trace; every step is in the file when `write` returns."""

    def __init__(self, path: Path, header: RouteHeader):
        self._header = header
        try:
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
        self._file.write(MAGIC + json.dumps(asdict(header)).encode() + b"\n")

    def write(self, experts: NDArray[Any], *, chunk: bool) -> None:
        """One step's experts [rows, layers, k]."""
        packed = _pack(np.sort(experts.astype(np.uint16), axis=2))
        self._file.write(_FRAME.pack(int(chunk), len(experts), len(packed)) + packed)
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


@dataclass(frozen=True)
class RouteTrace:
    """A trace that was read."""

    header: RouteHeader
    frames: tuple[RouteFrame, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The trace; ModelFileError where it is none, is cut off, or names experts that its model lacks."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelFileError(f"{path}: {error.strerror}") from None
        end = data.find(b"\n", len(MAGIC))
        if not data.startswith(MAGIC) or end < 0:
            raise ModelFileError(f"{path}: not a routing trace")
        try:
            found = json.loads(data[len(MAGIC) : end])
            header = RouteHeader(
                int(found["num_experts"]),
                int(found["experts_per_token"]),
                tuple(map(int, found["expert_bytes"])),
            )
        except (ValueError, KeyError, TypeError):
            raise ModelFileError(f"{path}: its header cannot be read") from None
        return cls(header, tuple(_frames(path, data, end + 1, header)))

    def steps(self, rows: int) -> Iterator[NDArray[np.int64]]:
        """Experts of successive groups of `rows` rows as numbers layer * num_experts + expert, each once, by layer."""
        every = np.concatenate([f.experts for f in self.frames]).astype(np.int64)
        every += np.arange(self.header.layers)[:, None] * self.header.num_experts
        for first in range(0, len(every), rows):
            yield np.unique(every[first : first + rows])


def _frames(path: Path, data: bytes, at: int, header: RouteHeader) -> Iterator[RouteFrame]:
    while at < len(data):
        if at + _FRAME.size > len(data):
            raise ModelFileError(f"{path}: cut off at byte {at}")
        chunk, rows, size = _FRAME.unpack_from(data, at)
        body, at = data[at + _FRAME.size : at + _FRAME.size + size], at + _FRAME.size + size
        shape = (rows, header.layers, header.experts_per_token)
        if len(body) != size or not 0 < 2 * np.prod(shape, dtype=np.int64) <= _MOST:
            raise ModelFileError(f"{path}: cut off, or a step of {rows} rows, at byte {at - size}")
        try:
            experts = _unpack(body, shape)
        except (zlib.error, ValueError):
            raise ModelFileError(f"{path}: a step before byte {at} is damaged") from None
        if int(experts.max()) >= header.num_experts:
            raise ModelFileError(f"{path}: expert {experts.max()} of a model with {header.num_experts}")
        yield RouteFrame(bool(chunk), experts)


def _pack(experts: NDArray[np.uint16]) -> bytes:
    steps = np.diff(experts, axis=2, prepend=np.zeros_like(experts[:, :, :1]))
    return zlib.compress(steps.transpose(1, 2, 0).reshape(-1).view(np.uint8).reshape(-1, 2).T.tobytes(), 9)


def _unpack(body: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint16]:
    rows, layers, k = shape
    reader = zlib.decompressobj()
    raw = reader.decompress(body, 2 * rows * layers * k)
    planes = np.frombuffer(raw, np.uint8).reshape(2, -1).T
    steps = np.ascontiguousarray(planes).view(np.uint16).reshape(layers, k, rows).transpose(2, 0, 1)
    return np.cumsum(steps, axis=2, dtype=np.uint16)
