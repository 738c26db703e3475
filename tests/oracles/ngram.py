"""Hashed n-gram table: rows picked by the last tokens, gated by the residual, then a dilated convolution."""

import math

import numpy as np

from oracles.delta import causal_conv
from oracles.model import Array, Model, sigmoid, silu
from oracles.norms import grouped_norm


def ngram_injection(model: Model, layer: str, residual: Array, tokens: Array) -> Array:
    """What is added to the residual [tokens, count * hidden]."""
    count, n = int(model.key("hyper_connection.count")), len(residual)
    hidden = residual.shape[1] // count

    def normed(x: Array, name: str) -> Array:
        return grouped_norm(x, model[f"{layer}ple_norm_{name}.weight"], count, model.eps)

    embedding = model["per_layer_token_embd.weight"][table_rows(model, tokens)].reshape(n, -1)
    key = normed(embedding @ model[layer + "ple_key.weight"].T, "key")
    query = normed(residual, "query")
    score = (key * query).reshape(n, count, hidden).sum(-1, keepdims=True) / math.sqrt(hidden)
    score = np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6))
    value = embedding @ model[layer + "ple_value.weight"].T
    gated = (sigmoid(score) * value[:, None]).reshape(residual.shape)
    dilation = int(model.key("ple.ngram_size"))
    return gated + silu(causal_conv(normed(gated, "conv"), model[layer + "ple_conv1d.weight"], dilation))


def table_rows(model: Model, tokens: Array) -> Array:
    """int64 [tokens, heads]: heads of order 2 first, then those of order 3, and so on."""
    size, per_order = int(model.key("ple.ngram_size")), int(model.key("ple.heads_per_ngram"))
    multipliers = np.asarray(model.key("ple.layer_multipliers"), np.uint64)
    vocab = np.asarray(model.key("ple.head_vocab_sizes"), np.uint64)
    offsets = np.asarray(model.key("ple.head_offsets"), np.uint64)
    context = contexts(tokens, size, int(model.key("ple.eos_token_id"))).astype(np.uint64)
    mixed, rows = context[:, 0] * multipliers[0], []
    for back in range(1, size):
        mixed = mixed ^ (context[:, back] * multipliers[back])
        heads = slice((back - 1) * per_order, back * per_order)
        rows.append(mixed[:, None] % vocab[heads] + offsets[heads])
    return np.concatenate(rows, axis=1).astype(np.int64)


def contexts(tokens: Array, size: int, eos: int) -> Array:
    """[tokens, size]: the token and those before it; from a missing one or an `eos` back, all are `eos`."""
    out = np.full((len(tokens), size), eos, np.int64)
    out[:, 0] = tokens
    for t in range(len(tokens)):
        for back in range(1, min(size, t + 1)):
            if tokens[t - back] == eos:
                break
            out[t, back] = tokens[t - back]
    return out
