"""Byte-level alphabet of GPT-2: one printable character a byte, so that vocabularies are plain text."""

from itertools import chain

# Printable Latin-1 stands for itself; the other 68 bytes take U+0100 onwards (GPT-2, `bytes_to_unicode`).
_PRINTABLE = frozenset(chain(range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100)))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHAR: dict[int, str] = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + index) for index, byte in enumerate(_OTHERS)
}
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def token_text_to_bytes(token: str) -> bytes:
    """Bytes that a byte-level token spells; a token with other characters spells its own UTF-8."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "surrogateescape")
