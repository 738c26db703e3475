"""A llama forward in plain float32 NumPy, written for the tests alone: whole sequence at once, no cache, no ops."""

import numpy as np

from strata.gguf import open_model
from strata.quants import FORMATS


def forward(path, tokens, frequencies=None, magnitude=1.0):
    """Logits float32 [tokens, vocab]; `frequencies` replaces the rotary ones (rope scaling)."""
    file = open_model(path)

    def weight(name):
        info = file.tensors[name]
        return FORMATS[info.type.name].decode(file.data(name)).reshape(tuple(reversed(info.ne)))

    def number(key):
        return file.metadata[f"llama.{key}"]

    eps, heads = np.float32(number("attention.layer_norm_rms_epsilon")), number("attention.head_count")
    kv_heads, hidden = number("attention.head_count_kv"), number("embedding_length")
    dim = hidden // heads

    def norm(x, w):
        return x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=np.float64).astype(np.float32) + eps) * w

    if frequencies is None:
        frequencies = float(file.metadata.get("llama.rope.freq_base", 1e4)) ** -(np.arange(0, dim, 2) / dim)
    angle = np.outer(np.arange(len(tokens)), frequencies)
    turn = (np.exp(1j * angle) * magnitude)[:, None]

    def rotate(x):  # adjacent values are one complex number
        pairs = x.astype(np.float64).reshape(*x.shape[:-1], -1, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape).astype(np.float32)

    def linear(x, name):
        y = x @ weight(name + ".weight").T
        return y + weight(name + ".bias") if name + ".bias" in file.tensors else y

    x = weight("token_embd.weight")[np.asarray(tokens)]
    mask = np.triu(np.full((len(tokens), len(tokens)), -np.inf, np.float32), 1)
    for i in range(number("block_count")):
        b = f"blk.{i}."
        h = norm(x, weight(b + "attn_norm.weight"))
        q = rotate(linear(h, b + "attn_q").reshape(-1, heads, dim))
        k = rotate(linear(h, b + "attn_k").reshape(-1, kv_heads, dim)).repeat(heads // kv_heads, 1)
        v = linear(h, b + "attn_v").reshape(-1, kv_heads, dim).repeat(heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(np.float32(dim)) + mask
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(len(tokens), hidden)
        x = x + linear(y, b + "attn_output")
        h = norm(x, weight(b + "ffn_norm.weight"))
        gate, up = linear(h, b + "ffn_gate"), linear(h, b + "ffn_up")
        x = x + linear(gate / (1 + np.exp(-gate)) * up, b + "ffn_down")
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    return norm(x, weight("output_norm.weight")) @ weight(head).T
