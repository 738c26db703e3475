"""Weights in few small files, losslessly: bfloat16 matrices as two planes of bytes, the upper one deflated.

weights-0.bin and on are one stream cut in parts of PART_BYTES; weights.json says where each tensor lies in it.
"""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PART_BYTES = 15 << 20
PIECE = 1 << 22
_SMALL = 1 << 16  # tensors up to this size stay float32


def _kept_wide(name: str, tensor: Tensor) -> bool:
    return tensor.numel() <= _SMALL and (
        "norm" in name or tensor.ndim < 2 or "mlp.gate." in name or "conv" in name
    )


def write_packed(model: torch.nn.Module, directory: Path) -> None:
    """All parameters and hash constants under their names."""
    entries, bits, wide = {}, [], []
    places = {"bf16": 0, "raw": 0}
    for name, stored in model.state_dict().items():
        tensor = stored.detach().cpu()
        if tensor.dtype == torch.float32 and not _kept_wide(name, tensor):
            data = tensor.bfloat16().view(torch.uint16).numpy().reshape(-1)
            kind, into, size = "bf16", bits, data.size
        else:
            data = np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8)
            kind, into, size = "raw", wide, data.size
        entries[name] = {
            "kind": kind,
            "dtype": str(tensor.numpy().dtype),
            "shape": list(tensor.shape),
            "at": places[kind],
        }
        places[kind] += size
        into.append(data)
    planes = np.concatenate(bits)
    upper, lower = (planes >> 8).astype(np.uint8).tobytes(), (planes & 255).astype(np.uint8).tobytes()
    with ThreadPoolExecutor() as pool:
        pieces = [upper[i : i + PIECE] for i in range(0, len(upper), PIECE)]
        packed = list(pool.map(lambda piece: zlib.compress(piece, 6), pieces))
    index = {"values": len(upper), "pieces": [len(piece) for piece in packed], "tensors": entries}
    stream = b"".join([*packed, lower, np.concatenate(wide).tobytes()])
    for number, start in enumerate(range(0, len(stream), PART_BYTES)):
        (directory / f"weights-{number}.bin").write_bytes(stream[start : start + PART_BYTES])
    (directory / "weights.json").write_text(json.dumps(index))


def read_packed(directory: Path) -> dict[str, Tensor]:
    """Tensors by name; bfloat16 ones as float32."""
    index = json.loads((directory / "weights.json").read_text())
    count = len(list(directory.glob("weights-*.bin")))
    stream = b"".join((directory / f"weights-{i}.bin").read_bytes() for i in range(count))
    cuts = np.cumsum([0, *index["pieces"]]).tolist()
    upper = b"".join(zlib.decompress(stream[a:b]) for a, b in pairwise(cuts))
    lower = np.frombuffer(stream, np.uint8, index["values"], cuts[-1])
    planes = np.frombuffer(upper, np.uint8).astype(np.uint32) << 24 | lower.astype(np.uint32) << 16
    wide = stream[cuts[-1] + index["values"] :]
    found = {}
    for name, entry in index["tensors"].items():
        size = int(np.prod(entry["shape"]))
        if entry["kind"] == "bf16":
            values = planes[entry["at"] : entry["at"] + size].view(np.float32)
        else:
            values = np.frombuffer(wide, entry["dtype"], size, entry["at"])
        found[name] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return found
