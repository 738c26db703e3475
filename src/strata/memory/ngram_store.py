"""The n-gram table outside the map: rows by id from RAM, a map or direct reads (native/tiers/ngram_store.h)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from strata import _native
from strata.errors import MemoryLimitError, ModelFileError
from strata.gguf import ModelFile
from strata.memory.file_places import FilePlaces
from strata.ops import NgramHash, Weight

NgramMode = Literal["ram", "map", "direct"]
MODES: tuple[NgramMode, ...] = ("ram", "map", "direct")


@dataclass(frozen=True)
class NgramOptions:
    """Where rows come from; `cache_bytes`: of rows that direct reads keep."""

    mode: NgramMode = "direct"
    cache_bytes: int = 64 << 20
    read_threads: int = 0  # 0: io_uring where it is granted
    wait_seconds: float = 30.0


def ngram_tables(model: Any) -> Iterator[Weight]:
    """Each table that a model's dataclasses hold beside a hash."""
    if isinstance(model, tuple | list):
        for item in model:
            yield from ngram_tables(item)
    elif is_dataclass(model) and not isinstance(model, type | Weight):
        values = [getattr(model, f.name) for f in fields(model)]
        table = getattr(model, "table", None)
        if isinstance(table, Weight) and any(isinstance(v, NgramHash) for v in values):
            yield table
        else:
            yield from ngram_tables(values)


def open_table(
    table: Weight,
    files: Sequence[ModelFile],
    options: NgramOptions,
    counters: _native.TierCounters,
) -> _native.NgramStore:
    """A store of the table's rows; ModelFileError, MemoryLimitError."""
    places = FilePlaces(files)
    file, offset = places.find(table)
    rows, row_bytes = table.shape[0], table.nbytes // table.shape[0]
    try:
        return _native.NgramStore(
            places.paths[file],
            offset,
            rows,
            row_bytes,
            MODES.index(options.mode),
            max(options.cache_bytes // row_bytes, 1),
            options.read_threads,
            int(options.wait_seconds * 1e9),
            counters,
        )
    except MemoryError:
        raise MemoryLimitError(
            f"the system refuses {table.nbytes / 2**30:.2f} GiB for the n-gram table in RAM; --ngram-table direct "
            "reads its rows from the file"
        ) from None
    except OSError as error:
        raise ModelFileError(f"{error.filename}: the n-gram table cannot be read: {error.strerror}") from None
