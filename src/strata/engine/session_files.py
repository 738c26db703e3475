"""Session files: one for the cells of a page, one for a checkpoint's state; checked bytes that are replaced whole."""

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.errors import ModelFileError

MAGIC, VERSION = b"STRATASE", 1
_HEAD = struct.Struct("<8sIIQII")  # magic, version, bytes of the JSON header, of the body; CRC-32 of each
MAX_HEADER = 1 << 16


@dataclass(frozen=True)
class SessionFile:
    """A file's checked header, and where its body lies."""

    path: Path
    header: dict[str, Any]
    body_begin: int
    body_bytes: int
    body_crc: int

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.body_begin + self.body_bytes

    @classmethod
    def open(cls, path: Path, model: str) -> "SessionFile":
        """Reads the header; ModelFileError where the file is none of ours, of another model or version, or cut off."""
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size or head[:8] != MAGIC:
                    raise ModelFileError(f"{path}: not a session file: it does not begin with its mark")
                _, version, text_bytes, body_bytes, text_crc, body_crc = _HEAD.unpack(head)
                if version != VERSION:
                    raise ModelFileError(
                        f"{path}: a session file of version {version}; this build reads {VERSION}"
                    )
                text = file.read(min(text_bytes, MAX_HEADER))
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise ModelFileError(f"{path}: {error.strerror}") from None
        wanted = _HEAD.size + text_bytes + body_bytes
        if size != wanted:
            raise ModelFileError(f"{path}: {size} bytes; its header says {wanted}")
        if zlib.crc32(text) != text_crc:
            raise ModelFileError(f"{path}: its header has changed: the checksum does not match")
        header = json.loads(text)
        if header["model"] != model:
            raise ModelFileError(f"{path}: made for another model or another type of keys and values")
        return cls(path, header, _HEAD.size + text_bytes, body_bytes, body_crc)

    def read(self) -> bytearray:
        """The body; ModelFileError where it is not what was written."""
        body = bytearray(self.body_bytes)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.body_begin)
                count = file.readinto(body)
        except OSError as error:
            raise ModelFileError(f"{self.path}: {error.strerror}") from None
        if count != self.body_bytes or zlib.crc32(body) != self.body_crc:
            raise ModelFileError(f"{self.path}: its bytes have changed: the checksum does not match")
        return body


def write_session_file(path: Path, header: dict[str, Any], body: Any) -> int:
    """Writes a file that is there as a whole or not at all; returns its bytes. OSError where the disk refuses."""
    text = json.dumps(header).encode()
    view = memoryview(body).cast("B")
    head = _HEAD.pack(MAGIC, VERSION, len(text), view.nbytes, zlib.crc32(text), zlib.crc32(view))
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            file.write(head + text)
            file.write(view)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    return len(head) + len(text) + view.nbytes
