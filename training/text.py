"""Documents of all sources, and which of them are held out."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training.fetch import unpacked
from training.sources import SOURCES

HELD_OUT = 50  # one document in so many
DOMAINS = ("english", "code", "chinese")


@dataclass(frozen=True)
class Document:
    """`held_out` follows from the name alone, so that a document never changes sides."""

    domain: str
    name: str
    text: str
    held_out: bool


def documents(directory: Path) -> Iterator[Document]:
    """All documents in a fixed order, up to each source's limit; repeated texts are dropped."""
    seen: set[bytes] = set()
    for source in SOURCES:
        taken = 0.0
        found = sorted(source.read(unpacked(source, directory)), key=lambda d: _draw(source.package + d[0]))
        for name, text in found:
            key = hashlib.sha256(text.encode()).digest()[:8]
            if key in seen:
                continue
            if taken > source.megabytes * 1e6:
                break
            seen.add(key)
            taken += len(text.encode())
            full = f"{source.package}/{name}"
            yield Document(source.domain, full, text, _draw(full.partition("#")[0]) % HELD_OUT == 0)


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode(errors="replace")).digest()[:6], "big")
