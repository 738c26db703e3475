"""Writing logits row by row: a .npy file that appears only when it is whole, and the SHA-256 of its rows."""

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from strata.errors import UsageError


class LogitsFile:
    """float32 [num_rows, vocab_size] at `path`, written through a temporary file beside it."""

    def __init__(self, path: Path, num_rows: int, vocab_size: int) -> None:
        self.path = path
        self.shape = (num_rows, vocab_size)
        self.num_written = 0
        self._hash = hashlib.sha256()
        if path.is_dir():
            raise UsageError(f"{path} is a directory")
        # A device or a pipe (/dev/null) is written to; a file beside it would take its place.
        special = path.exists() and not path.is_file()
        self._part = path if special else path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            self._file = self._part.open("wb")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None

    def write(self, rows: np.ndarray[Any, Any]) -> None:
        """Append float32 rows."""
        data = np.ascontiguousarray(rows, dtype="<f4")
        self._hash.update(data.data)
        self._file.write(data.data)
        self.num_written += len(data)

    @property
    def sha256(self) -> str:
        """Digest of all rows written, without the header."""
        return self._hash.hexdigest()

    def __enter__(self) -> Self:
        try:
            header = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(self._file, header)
        except BaseException:
            self._leave(whole=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(whole=error is None)

    def _leave(self, whole: bool) -> None:
        try:
            self._file.close()
        except OSError:  # what was buffered does not fit
            self._unlink()
            raise
        if whole and self._part != self.path:
            self._part.replace(self.path)
        elif not whole:
            self._unlink()

    def _unlink(self) -> None:
        if self._part != self.path:
            self._part.unlink(missing_ok=True)
