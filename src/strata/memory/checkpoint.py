"""Checkpoints: what a sequence carries at one position, taken out of the pools, put back, and as checked bytes."""

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import ModelFileError
from strata.memory.resident import forget_pages
from strata.memory.state import StatePool
from strata.ops import PAGE_CELLS, Buffer

MAGIC, VERSION = b"STRATACP", 1
_HEAD = struct.Struct(
    "<8sIIQI"
)  # magic, version, bytes of the JSON header, bytes of the arrays, their CRC-32

ArrayOf = Callable[[Buffer], NDArray[Any]]  # a backend's memory of a buffer


@dataclass(frozen=True)
class Checkpoint:
    """Copies of a sequence's settled recurrent state and, unless they stay shared in the pool, of its pages."""

    position: int  # of the next token
    arrays: tuple[tuple[str, NDArray[Any]], ...]  # by buffer name
    fingerprint: str  # of the pools it fits

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for _, a in self.arrays)

    def to_bytes(self) -> bytes:
        """A versioned form that `from_bytes` checks."""
        listed = [{"name": n, "dtype": a.dtype.str, "shape": a.shape} for n, a in self.arrays]
        header = {"position": self.position, "fingerprint": self.fingerprint, "arrays": listed}
        text = json.dumps(header).encode()
        body = b"".join(np.ascontiguousarray(a).tobytes() for _, a in self.arrays)
        return _HEAD.pack(MAGIC, VERSION, len(text), len(body), zlib.crc32(text + body)) + text + body

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """The checkpoint; ModelFileError where the bytes are of another version, cut off or changed."""
        if len(data) < _HEAD.size or data[:8] != MAGIC:
            raise ModelFileError("not a checkpoint: it does not begin with its mark")
        _, version, text_bytes, body_bytes, crc = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ModelFileError(f"a checkpoint of version {version}; this build reads version {VERSION}")
        wanted = _HEAD.size + text_bytes + body_bytes
        if len(data) != wanted:
            raise ModelFileError(f"a checkpoint of {len(data)} bytes; its header says {wanted}")
        if zlib.crc32(data[_HEAD.size :]) != crc:
            raise ModelFileError("a checkpoint whose bytes have changed: its checksum does not match")
        header = json.loads(data[_HEAD.size : _HEAD.size + text_bytes])
        arrays, at = [], _HEAD.size + text_bytes
        for entry in header["arrays"]:
            dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append((entry["name"], np.frombuffer(data, dtype, count, at).reshape(shape)))
            at += count * dtype.itemsize
        return cls(header["position"], tuple(arrays), header["fingerprint"])


def state_fingerprint(state: StatePool) -> str:
    """What two pools must share for one's checkpoints to fit the other."""
    return f"{state.shape} {[f'{b.name} {b.dtype}' for b in state.kv.buffers()[:1]]}"


def checkpoint_bytes(state: StatePool) -> int:
    """Bytes of a checkpoint without pages."""
    return sum(_nbytes(b, where) for b, where in _places(state, 0, 0))


def take_checkpoint(
    state: StatePool,
    array: ArrayOf,
    slot: int,
    position: int,
    pages: Sequence[int] | None = None,
    *,
    block: NDArray[np.uint8] | None = None,
) -> Checkpoint:
    """A checkpoint of a slot that is settled at `position`; with the contents of `pages` where they are given. `block`:
    memory of `checkpoint_bytes` for what is recurrent, else it is fresh."""
    block = np.empty(checkpoint_bytes(state), np.uint8) if block is None else block
    parts, at = [], 0
    for b, where in _places(state, slot, position):
        source, size = array(b), _nbytes(b, where)
        part = block[at : at + size].view(source.dtype).reshape(_shape(b, where))
        _read(source, where, part)
        parts.append((b.name, part))
        at += size
    if pages is not None:
        held = list(pages[: -(-position // PAGE_CELLS)])
        parts += [(b.name, array(b)[held]) for b in state.paged()]  # a list of pages gives copies
    return Checkpoint(position, tuple(parts), state_fingerprint(state))


def _shape(buffer: Buffer, where: tuple[Any, ...]) -> tuple[int, ...]:
    """Shape of a slot's part: `where` is the slot, and of rings the rows."""
    return (*(len(rows) for rows in where[1:]), *buffer.shape[len(where) :])


def _nbytes(buffer: Buffer, where: tuple[Any, ...]) -> int:
    return buffer.nbytes // prod(buffer.shape) * prod(_shape(buffer, where))


def _read(source: NDArray[Any], where: tuple[Any, ...], out: NDArray[Any]) -> None:
    """Copies a part to where it stays: a device's array would make fresh memory of what it is asked for."""
    read_into = getattr(source, "read_into", None)
    if read_into is None:
        out[...] = source[where]
    else:
        read_into(where, out)


def put_checkpoint(
    state: StatePool, array: ArrayOf, slot: int, checkpoint: Checkpoint, pages: Sequence[int] | None = None
) -> None:
    """Makes a slot what the checkpoint holds, and fills pages that it holds; the slot's `commits` must be 0."""
    if checkpoint.fingerprint != state_fingerprint(state):
        raise ModelFileError(
            f"a checkpoint of {checkpoint.fingerprint}; the model needs {state_fingerprint(state)}"
        )
    held = dict(checkpoint.arrays)
    for b, where in _places(state, slot, checkpoint.position):
        array(b)[where] = held[b.name]
    for b in state.paged() if pages is not None else ():
        if b.name in held:
            array(b)[list(pages or ())[: len(held[b.name])]] = held[b.name]
    forget_pages(state.kv, array, pages or ())


def copy_slot(state: StatePool, array: ArrayOf, source: int, target: int) -> None:
    """Makes a slot what another is, pending rows included: for a fork, or from a slot that a tap wrote."""
    for b in state.recurrent():
        array(b)[target] = array(b)[source]


def _places(state: StatePool, slot: int, position: int) -> list[tuple[Buffer, Any]]:
    """Recurrent buffers and where their part of a slot lies at `position`: of rings only the rows that are read."""
    found: list[tuple[Buffer, Any]] = [(d.state, (slot,)) for d in state.delta]
    for ring, back in state.all_rings():
        found.append((ring, (slot, np.arange(position - back, position) % ring.shape[1])))
    return found
