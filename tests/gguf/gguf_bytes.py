"""GGUF files assembled by hand with `struct`, so that reader tests do not lean on the writer."""

import struct
from collections.abc import Sequence

LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: object) -> bytes:
    return string(value) if kind == STRING else struct.pack("<" + LETTERS[kind], value)


def array(kind: int, items: Sequence[object]) -> bytes:
    """Item type, count and items; items of kind ARRAY are given encoded."""
    body = [item if kind == ARRAY else scalar(kind, item) for item in items]
    return struct.pack("<IQ", kind, len(items)) + b"".join(body)


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + payload


def record(name: str, ne: Sequence[int], kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(ne)}Q", len(ne), *ne) + struct.pack("<IQ", kind, offset)


def model_bytes(
    entries: Sequence[bytes] = (),
    records: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file; `counts` (tensors, metadata) overrides the true ones."""
    tensors, metadata = counts or (len(records), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, metadata) + b"".join(entries) + b"".join(records)
    return head + bytes(-len(head) % alignment) + data
