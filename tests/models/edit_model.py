"""Model files made from other model files: tensors and metadata replaced, added or left out."""

import numpy as np

from strata.gguf import TensorType, Typed, ValueType, open_model, write_model
from strata.quants import FORMATS


def f32(values):
    """A tensor spec without its name."""
    values = np.ascontiguousarray(values, np.float32)
    return values.shape[::-1], TensorType.F32, values.view(np.uint8).reshape(-1)


def floats(path, name):
    """A tensor's values, rows first."""
    file = open_model(path)
    info = file.tensors[name]
    return FORMATS[info.type.name].decode(file.data(name)).reshape(info.ne[::-1])


def edit_model(path, out, tensors=None, metadata=None, architecture=None):
    """Writes `out`: `tensors` maps names to specs (None: left out), `metadata` short keys to values or None."""
    file, changes = open_model(path), dict(tensors or {})
    specs = {name: (info.ne, info.type, file.data(name)) for name, info in file.tensors.items()} | changes
    old = file.get("general.architecture", str)
    new = architecture or old
    keys = {_renamed(key, old, new): _typed(value) for key, value in file.metadata.items()}
    keys["general.architecture"] = new
    for key, value in (metadata or {}).items():
        keys[f"{new}.{key}"] = _typed(value)
    kept = {key: value for key, value in keys.items() if value is not None}
    write_model(out, kept, [(name, *spec) for name, spec in specs.items() if spec is not None])
    return out


def _renamed(key, old, new):
    return new + key[len(old) :] if key.startswith(old + ".") else key


def _typed(value):
    if isinstance(value, bool):
        return Typed(value, ValueType.BOOL)
    if isinstance(value, int):
        return Typed(value, ValueType.UINT32)
    if isinstance(value, float):
        return Typed(value, ValueType.FLOAT32)
    return value if isinstance(value, (str, np.ndarray, type(None))) else list(value)
