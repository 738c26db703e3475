"""One mapped file, and reads from it that are checked against its size."""

import mmap
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np

from strata.errors import ModelFileError

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def shown(text: str, limit: int = 80) -> str:
    """Text from a file as one short printable line."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


class Source:
    """A read-only map of a whole file. Views of it stay valid for as long as they are held.

    Cutting the file short while it is mapped cannot be reported: the system ends the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = _map(path)
        self.view = self.raw.data
        self.size = len(self.raw)
        self.address = int(self.raw.ctypes.data)

    def fault(self, field: str, at: int, problem: str) -> ModelFileError:
        """The error for a field that starts at byte `at`."""
        return ModelFileError(f"{self.path}: {field} at byte {at}: {problem}")


def _map(path: Path) -> Bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(f"{path}: is a directory; name a .gguf file")
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{path}: is not a regular file")
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelFileError(f"{path}: the file is empty")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFileError(f"{path}: cannot be read: {reason}") from None


class Cursor:
    """Reads little-endian fields in order; every read names its field and is checked before it is made."""

    def __init__(self, source: Source, at: int = 0) -> None:
        self.source = source
        self.at = at

    @property
    def left(self) -> int:
        return self.source.size - self.at

    def need(self, count: int, field: str) -> None:
        """Check that `count` more bytes exist."""
        if count > self.left:
            problem = f"truncated: needs {self.at + count} bytes, the file has {self.source.size}"
            raise self.source.fault(field, self.at, problem)

    def scalar(self, code: str, field: str) -> Any:
        """One value by its `struct` letter."""
        self.need(struct.calcsize("<" + code), field)
        (value,) = struct.unpack_from("<" + code, self.source.view, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def u32(self, field: str) -> int:
        return int(self.scalar("I", field))

    def u64(self, field: str) -> int:
        return int(self.scalar("Q", field))

    def count(self, field: str, least: int) -> int:
        """A u64 count of records that take at least `least` bytes each."""
        at = self.at
        value = self.u64(field)
        if value > self.left // least:
            problem = f"{value} needs at least {value * least} more bytes, the file has {self.left}"
            raise self.source.fault(field, at, problem)
        return value

    def skip_string(self, field: str) -> None:
        at = self.at
        length = self.u64(f"length of {field}")
        if length > self.left:
            problem = f"says {length} bytes, the file has {self.left} more"
            raise self.source.fault(f"length of {field}", at, problem)
        self.at += length

    def string(self, field: str) -> str:
        """A UTF-8 string with its u64 length before it."""
        at = self.at
        self.skip_string(field)
        try:
            return str(self.source.view[at + 8 : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise self.source.fault(field, at + 8 + error.start, f"not UTF-8: {error.reason}") from None
