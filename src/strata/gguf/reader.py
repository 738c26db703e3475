"""Opening model files: the header, the shards of a split file, and views of tensor data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from strata.errors import ModelFileError
from strata.gguf.metadata import LEAST_ENTRY_BYTES, REQUIRED, Metadata, read_metadata
from strata.gguf.source import Bytes, Cursor, Source, shown
from strata.gguf.tensors import LEAST_RECORD_BYTES, TensorInfo, read_tensors
from strata.gguf.types import DEFAULT_ALIGNMENT, MAGIC, VERSIONS

T = TypeVar("T")
SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a model, open."""

    source: Source
    version: int
    alignment: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]

    @property
    def path(self) -> Path:
        return self.source.path


class ModelFile:
    """A model file, all shards of it. Metadata is that of the first shard."""

    def __init__(self, path: Path, shards: list[Shard]) -> None:
        self.path = path
        self.version = shards[0].version
        self.alignment = shards[0].alignment
        self.nbytes = sum(shard.source.size for shard in shards)
        self.tensors: dict[str, TensorInfo] = {}
        for shard in shards:
            self.tensors.update(shard.tensors)
        self._shards: list[Shard] | None = shards

    @property
    def shards(self) -> list[Shard]:
        """The files in order; an error after `close`."""
        if self._shards is None:
            raise ModelFileError(f"{self.path}: the model file is closed")
        return self._shards

    @property
    def metadata(self) -> Metadata:
        return self.shards[0].metadata

    def get(self, key: str, kind: type[T], default: T = REQUIRED) -> T:
        """A metadata value of `kind`; ModelFileError if it is of another, or missing without a default."""
        return self.metadata.value(key, kind, default)

    def data(self, name: str) -> Bytes:
        """The bytes of a tensor: uint8 [nbytes], a read-only view of the map."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: there is no tensor {shown(name)}")
        return self.shards[info.shard].source.raw[info.offset : info.offset + info.nbytes]

    def close(self) -> None:
        """Let go of the maps; memory goes when the last view does."""
        self._shards = None

    def __enter__(self) -> "ModelFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_model(path: str | Path) -> ModelFile:
    """Map a GGUF file, or the whole set a shard belongs to; ModelFileError for anything wrong with it."""
    path = Path(path)
    opened = _open_shard(path, 0)
    count = opened.metadata.value("split.count", int, 1)
    if count <= 1:
        return ModelFile(path, [opened])
    paths = shard_paths(path, count)
    return ModelFile(path, _join(paths, [_open_shard(part, index) for index, part in enumerate(paths)]))


def shard_paths(path: Path, count: int) -> list[Path]:
    """The files of the set of `count` shards that `path` belongs to; an error names missing ones."""
    match = SHARD_NAME.fullmatch(path.name)
    if not match or int(match["count"]) != count:
        raise ModelFileError(
            f"{path}: is one of {count} shards (split.count) and must be named NAME-00001-of-{count:05}.gguf"
        )
    paths = [path.with_name(f"{match['stem']}-{no:05}-of-{count:05}.gguf") for no in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelFileError(
            f"{path}: {len(missing)} of {count} shards missing: {', '.join(missing[:3])}{more}"
        )
    return paths


def _join(paths: list[Path], shards: list[Shard]) -> list[Shard]:
    """Check that shards have their own number, one count, no tensor twice and none missing."""
    seen: dict[str, Path] = {}
    for index, shard in enumerate(shards):
        for key, wanted in (("split.no", index), ("split.count", len(shards))):
            if (found := shard.metadata.value(key, int)) != wanted:
                raise ModelFileError(f"{shard.path}: {key} is {found}, its file name says {wanted}")
        for name in shard.tensors:
            if name in seen:
                raise ModelFileError(f"{shard.path}: tensor {shown(name)} is also in {seen[name].name}")
            seen[name] = shard.path
    wanted = shards[0].metadata.value("split.tensors.count", int, len(seen))
    if wanted != len(seen):
        raise ModelFileError(f"{paths[0]}: split.tensors.count is {wanted}, the shards hold {len(seen)}")
    return shards


def _open_shard(path: Path, index: int) -> Shard:
    cursor = Cursor(Source(path))
    version = _read_version(cursor)
    num_tensors = cursor.count("tensor count", LEAST_RECORD_BYTES - 8)  # a tensor may have no dimensions
    num_entries = cursor.count("metadata count", LEAST_ENTRY_BYTES)
    metadata = read_metadata(cursor, num_entries)
    alignment = metadata.value("general.alignment", int, DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment & (alignment - 1) or alignment >= 2**32:
        raise ModelFileError(
            f"{path}: general.alignment is {alignment}; it must be a power of two from 8 to 2^31"
        )
    return Shard(
        cursor.source, version, alignment, metadata, read_tensors(cursor, num_tensors, alignment, index)
    )


def _read_version(cursor: Cursor) -> int:
    source = cursor.source
    magic = bytes(source.view[:4])
    if magic != MAGIC:
        raise source.fault("magic", 0, f"is {magic!r}, a GGUF file starts with {MAGIC!r}")
    cursor.at = 4
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in VERSIONS:
        raise source.fault(
            "version", 4, f"the file is big-endian (version {swapped}); convert it to little-endian"
        )
    raise source.fault("version", 4, f"{version} is not supported; versions 2 and 3 are")
