"""Writing a file with all cores: every tensor's place is known first, then pieces go where they belong."""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from strata.errors import UsageError
from strata.gguf import TensorType
from strata.gguf.types import DEFAULT_ALIGNMENT
from strata.gguf.writer import encode_header
from strata.synth.blocks import Piece

Job = Callable[[], Iterable[Piece]]


@dataclass(frozen=True)
class Entry:
    """A tensor and the jobs that make its bytes; without jobs it stays a hole in the file."""

    name: str
    ne: tuple[int, ...]
    type: TensorType
    jobs: Sequence[Job] = ()

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(prod(self.ne))


@dataclass
class ParallelWriter:
    """A file under a temporary name, filled by `submit` from several threads, whole after `finish`."""

    path: Path
    threads: int
    pending: list[Future[int]] = field(default_factory=list)

    def open(self, metadata: Mapping[str, Any], entries: Sequence[Entry]) -> None:
        """Write the header and set the file's size."""
        specs = [(entry.name, entry.ne, entry.type, b"") for entry in entries]
        header = encode_header(metadata, specs, DEFAULT_ALIGNMENT)
        self.places, at = {}, len(header)
        for entry in entries:
            self.places[entry.name] = at
            at += -(-entry.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        self.nbytes = at
        self._pool = ThreadPoolExecutor(self.threads)
        try:
            self._fd, self._part = tempfile.mkstemp(".part", self.path.name + ".", self.path.parent)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            os.ftruncate(self._fd, at)
            _write_at(self._fd, memoryview(header), 0)
        except OSError as error:
            self.abandon()
            raise UsageError(f"{self.path}: cannot be written ({at} bytes): {error.strerror}") from None

    def submit(self, entry: Entry) -> None:
        """Start the jobs of a tensor."""
        self.pending += [self._pool.submit(self._run, job, self.places[entry.name]) for job in entry.jobs]

    def finish(self) -> int:
        """Wait for all jobs and give the file its name; returns bytes written to tensors."""
        try:
            written = sum(future.result() for future in as_completed(self.pending))
            Path(self._part).chmod(0o644)
            Path(self._part).replace(self.path)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written ({self.nbytes} bytes): {error.strerror}"
            ) from None
        finally:
            self.abandon()
        return written

    def abandon(self) -> None:
        """Stop, and remove what is not finished."""
        self._pool.shutdown(cancel_futures=True)
        with suppress(OSError):
            os.close(self._fd)
        with suppress(FileNotFoundError):
            Path(self._part).unlink()

    def _run(self, job: Job, at: int) -> int:
        written = 0
        for offset, data in job():
            _write_at(self._fd, np.ascontiguousarray(data).data.cast("B"), at + offset)
            written += data.nbytes
        return written


def _write_at(fd: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(fd, data, at)
        data, at = data[done:], at + done
