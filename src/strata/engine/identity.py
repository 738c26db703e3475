"""What tells one model's sessions from another's."""

import hashlib

from strata.gguf import ModelFile

_SAMPLE = 256  # bytes at the beginning of each tensor


def model_identity(file: ModelFile, setting: str) -> str:
    """A digest of the file's tensors (names, types, shapes, first bytes) and of what else decides a session's bytes.
    The whole weights would take as long to read as to load."""
    digest = hashlib.sha256(setting.encode())
    for name, info in file.tensors.items():
        digest.update(f"{name} {info.type.name} {info.ne}".encode())
        digest.update(bytes(file.data(name)[:_SAMPLE]))
    return digest.hexdigest()
