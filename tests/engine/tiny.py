"""A tiny random llama file of mixed block types, written by the project's own writer."""

import numpy as np

from strata.gguf import TensorType, Typed, ValueType, write_model
from strata.quants import FORMATS

HIDDEN, FF, HEADS, KV_HEADS, LAYERS, VOCAB, CONTEXT = 256, 512, 8, 2, 3, 320, 1024
KINDS = ["Q4_1", "Q6_K", "IQ4_NL", "Q8_0", "Q4_K", "F16", "BF16"]


def write_tiny_llama(path, seed=1, kinds=KINDS, biases=True, context=CONTEXT, **metadata):
    """Writes the file; every tensor is random, so that no part of the forward can be left out unseen."""
    g = np.random.default_rng(seed)
    tensors = []

    def add(name, kind, *shape, std=0.08, mean=0.0):
        x = (mean + std * g.standard_normal(shape)).astype(np.float32)
        raw = FORMATS[kind].encode(x.reshape(-1, shape[-1]))
        tensors.append(
            (name, tuple(reversed(shape)), TensorType[kind], np.ascontiguousarray(raw).reshape(-1))
        )

    kv = HIDDEN // HEADS * KV_HEADS
    add("token_embd.weight", "Q8_0", VOCAB, HIDDEN, std=1.0)
    add("output_norm.weight", "F32", HIDDEN, mean=1.0, std=0.2)
    for i in range(LAYERS):
        shapes = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FF, HIDDEN),
            "ffn_up": (FF, HIDDEN),
            "ffn_down": (HIDDEN, FF),
        }
        for j, (name, shape) in enumerate(shapes.items()):
            add(f"blk.{i}.{name}.weight", kinds[(i + j) % len(kinds)], *shape)
        if biases:
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                add(f"blk.{i}.{name}.bias", "F32", shapes[name][0], std=0.3)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{name}.weight", "F32", HIDDEN, mean=1.0, std=0.2)
    write_model(path, _metadata(context) | metadata, tensors)
    return path


def _metadata(context):
    def u32(n):
        return Typed(n, ValueType.UINT32)

    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": u32(LAYERS),
        "llama.context_length": u32(context),
        "llama.embedding_length": u32(HIDDEN),
        "llama.feed_forward_length": u32(FF),
        "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": Typed(1e-5, ValueType.FLOAT32),
        "llama.rope.freq_base": Typed(10000.0, ValueType.FLOAT32),
    }
