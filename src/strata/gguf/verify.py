"""Checking a model file: its structure, and the SHA-256 of its bytes."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata.errors import ModelFileError, UsageError
from strata.gguf.reader import open_model


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """One file that was read whole."""

    path: Path
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked: the files in shard order, and how many tensors they hold."""

    files: tuple[VerifiedFile, ...]
    tensors: int


def verify(path: str | Path, sha256: str | Sequence[str] | None = None) -> Verification:
    """Check the structure of all shards and hash each file; ModelFileError where a hash differs.

    One expected hash is that of the file named by `path`; a list has one per shard, in order.
    """
    path = Path(path)
    with open_model(path) as model:
        paths = [shard.path for shard in model.shards]
        num_tensors = len(model.tensors)
    expected = _expected(path, paths, sha256)
    files = []
    for part in paths:
        found = file_sha256(part)
        if part in expected and found != expected[part]:
            raise ModelFileError(f"{part}: SHA-256 is {found}, expected {expected[part]}")
        files.append(VerifiedFile(part, part.stat().st_size, found))
    return Verification(tuple(files), num_tensors)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces, in lower-case hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _expected(path: Path, paths: list[Path], sha256: str | Sequence[str] | None) -> dict[Path, str]:
    if sha256 is None:
        return {}
    if isinstance(sha256, str):
        pairs = [(path, sha256)]
    elif len(sha256) == len(paths):
        pairs = list(zip(paths, sha256, strict=True))
    else:
        raise UsageError(f"{len(sha256)} hashes given for {len(paths)} files")
    for _, digest in pairs:
        if not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise UsageError(f"{digest!r} is not a SHA-256: 64 hexadecimal digits")
    return {part: digest.lower() for part, digest in pairs}
