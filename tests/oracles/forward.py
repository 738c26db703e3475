"""Token ids to logits, for every architecture."""

import numpy as np

from oracles import hyper
from oracles.attention import gated_attention, plain_attention
from oracles.delta import delta_mixer
from oracles.indexer import visible
from oracles.mlp import feed_forward
from oracles.model import Array, Model
from oracles.ngram import ngram_injection
from oracles.norms import rms_norm
from oracles.rope import tables
from oracles.trace import Gap


def logits(model: Model, tokens: Array, trace: list[Gap] | None = None) -> Array:
    """[tokens, vocab], teacher-forced."""
    residual = trunk(model, tokens, trace)
    return head(model, final(model, residual))


def trunk(model: Model, tokens: Array, trace: list[Gap] | None = None) -> Array:
    """The residual after the last block: [tokens, hidden], of qwen4exp [tokens, streams * hidden]."""
    residual = model["token_embd.weight"][tokens]
    if model.arch == "qwen4exp":
        residual = np.tile(residual, (1, int(model.key("hyper_connection.count"))))
    for layer_idx in range(model.num_layers):
        residual = block(model, layer_idx, residual, tokens, trace)
    return residual


def block(model: Model, layer_idx: int, residual: Array, tokens: Array, trace: list[Gap] | None) -> Array:
    """One block; row i is position i."""
    layer = f"blk.{layer_idx}."
    if model.arch == "qwen4exp":
        return _streamed_block(model, layer_idx, residual, tokens, trace)
    after = "ffn_norm" if layer + "ffn_norm.weight" in model else "post_attention_norm"
    x = rms_norm(residual, model[layer + "attn_norm.weight"], model.eps)
    residual = residual + mixer(model, layer_idx, x, trace)
    x = rms_norm(residual, model[f"{layer}{after}.weight"], model.eps)
    return residual + feed_forward(model, layer_idx, x, trace)


def _streamed_block(
    model: Model, layer_idx: int, residual: Array, tokens: Array, trace: list[Gap] | None
) -> Array:
    layer = f"blk.{layer_idx}."
    if layer + "ple_key.weight" in model:
        residual = residual + ngram_injection(model, layer, residual, tokens)
    y = mixer(model, layer_idx, hyper.read(model, layer + "hc_attn_", residual), trace)
    residual = hyper.write(model, layer + "hc_attn_", residual, y)
    y = feed_forward(model, layer_idx, hyper.read(model, layer + "hc_ffn_", residual), trace)
    return hyper.write(model, layer + "hc_ffn_", residual, y)


def mixer(model: Model, layer_idx: int, x: Array, trace: list[Gap] | None) -> Array:
    """Delta rule, gated attention (sparse where the file says so) or plain attention."""
    layer = f"blk.{layer_idx}."
    if layer + "ssm_out.weight" in model:
        return delta_mixer(model, layer, x)
    angles = tables(model, np.arange(len(x)))
    if model.arch in ("llama", "qwen2", "qwen3", "qwen3moe"):
        return plain_attention(model, layer, x, angles)
    return gated_attention(model, layer, x, angles, visible(model, layer_idx, x, angles, trace))


def final(model: Model, residual: Array) -> Array:
    """[tokens, hidden], ready for the head."""
    if model.arch == "qwen4exp":
        return hyper.read(model, "output_hc_", residual)
    return rms_norm(residual, model["output_norm.weight"], model.eps)


def head(model: Model, hidden: Array) -> Array:
    """The output matrix, or the embedding where the file has none."""
    output = "output.weight" if "output.weight" in model else "token_embd.weight"
    return hidden @ model[output].T
