"""Which experts a text goes to: traces, loads, and what a cache of experts would hit."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.model import Model


@torch.no_grad()
def trace(model: Model, tokens: Tensor, sparse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """tokens [batch, time], time a multiple of 64 unless the batch is 1. Experts by rank, uint16
    [layers, rows, k], and all shares, float32 [layers, rows, experts]."""
    found: list[tuple[Tensor, Tensor]] = []
    hooks = [
        block.mlp.gate.register_forward_hook(lambda _, __, out: found.append((out[0], out[2])))
        for block in model.model.layers
    ]
    model.run(tokens, sparse)
    for hook in hooks:
        hook.remove()
    rows = tokens.numel()
    return (
        np.stack([ids[:rows].numpy() for ids, _ in found]).astype(np.uint16),
        np.stack([shares[:rows].numpy() for _, shares in found]),
    )


def save(path: Path, ids: np.ndarray, segments: list[tuple[str, int]], num_experts: int) -> None:
    """`ids` uint16 [layers, tokens, k]; `starts` int64 and `names` of the segments; `num_experts`."""
    names, starts = zip(*segments, strict=True)
    np.savez_compressed(
        path, ids=ids, starts=np.array(starts), names=np.array(names), num_experts=num_experts
    )


def loads(ids: np.ndarray, num_experts: int) -> np.ndarray:
    """Share of choices of every expert, in units of an even share: [layers, experts]."""
    counts = np.stack([np.bincount(layer.reshape(-1), minlength=num_experts) for layer in ids])
    return counts * num_experts / counts.sum(axis=1, keepdims=True)


def entropy(shares: np.ndarray) -> np.ndarray:
    """Bits, over the last axis."""
    shares = shares / shares.sum(axis=-1, keepdims=True)
    return -(shares * np.log2(np.maximum(shares, 1e-12))).sum(axis=-1)


def lru_hits(ids: np.ndarray, num_experts: int, share: float) -> float:
    """Hit rate of one cache over all layers that holds this share of all experts, tokens one by one; from cold."""
    layers, tokens, _ = ids.shape
    room, kept, hits = int(share * layers * num_experts), OrderedDict[int, None](), 0
    for token in range(tokens):
        for layer in range(layers):
            for expert in ids[layer, token].tolist():
                key = layer * num_experts + expert
                hits += key in kept
                kept[key] = None
                kept.move_to_end(key)
                if len(kept) > room:
                    kept.popitem(last=False)
    return hits / ids.size
