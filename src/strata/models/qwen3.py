"""qwen3moe, qwen3, qwen2: rotary halves; q and k norms per head, or biases; a SwiGLU or routed experts."""

from dataclasses import dataclass

from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import StatePool, StateShape
from strata.models.decoder import DecoderConfig, read_decoder_config
from strata.models.moe import MoeConfig, MoeWeights
from strata.models.swiglu import SwiGlu
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    LayerKV,
    RopeStyle,
    Weight,
    add,
    add_bias,
    attention,
    embed,
    gather_logit_rows,
    head_norm,
    kv_store,
    linear,
    rms_norm,
    rope,
)

ARCHITECTURES = ("qwen2", "qwen3", "qwen3moe")


@dataclass(frozen=True)
class Qwen3Layer:
    """Weights of one block; qwen2 has biases and no norms, the others norms and no biases."""

    attn_norm: Weight
    q_proj: Weight
    k_proj: Weight
    v_proj: Weight
    o_proj: Weight
    q_bias: Weight | None
    k_bias: Weight | None
    v_bias: Weight | None
    q_norm: Weight | None  # [head_dim]
    k_norm: Weight | None
    ffn_norm: Weight
    mlp: SwiGlu | MoeWeights


@dataclass(frozen=True)
class Qwen3:
    """The model: weights as they lie in the file."""

    config: DecoderConfig
    token_embd: Weight
    layers: tuple[Qwen3Layer, ...]
    output_norm: Weight
    output: Weight  # the embedding again where the file ties them

    def state_shape(self) -> StateShape:
        """What a sequence carries."""
        return StateShape(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)

    def forward(self, b: Builder, state: StatePool, table: Buffer, logits: Buffer) -> None:
        """Emits a step; `logits` [logit rows, vocab_size] receives what it ends in."""
        c = self.config
        x = embed(b, self.token_embd)
        for i, layer in enumerate(self.layers):
            b.mark(f"layer.{i}")
            x = add(
                b,
                x,
                self._attention(
                    b, rms_norm(b, x, layer.attn_norm, c.rms_eps), layer, state.kv.layers[i], table
                ),
            )
            x = add(b, x, layer.mlp.forward(b, rms_norm(b, x, layer.ffn_norm, c.rms_eps)))
        b.mark("head", repeatable=True)
        x = rms_norm(b, gather_logit_rows(b, x), self.output_norm, c.rms_eps)
        linear(b, x, self.output, out=logits)

    def _attention(self, b: Builder, x: Buffer, w: Qwen3Layer, kv: LayerKV, table: Buffer) -> Buffer:
        c = self.config
        q, k, v = (linear(b, x, p) for p in (w.q_proj, w.k_proj, w.v_proj))
        q, k, v = add_bias(b, q, w.q_bias), add_bias(b, k, w.k_bias), add_bias(b, v, w.v_bias)
        q, k = self._rotated(b, q, w.q_norm, table), self._rotated(b, k, w.k_norm, table)
        kv_store(b, k, v, kv)
        return linear(b, attention(b, q, kv, c.num_heads, scale=c.head_dim**-0.5), w.o_proj)

    def _rotated(self, b: Builder, x: Buffer, norm: Weight | None, table: Buffer) -> Buffer:
        """Heads normed, then turned by the rows' positions."""
        if norm is not None:
            x = head_norm(b, x, norm, self.config.rms_eps)
        return rope(b, x, table, self.config.head_dim, RopeStyle.HALVES)


def load(file: ModelFile) -> Qwen3:
    """Names to weights, every shape checked."""
    architecture = file.get("general.architecture", str)
    _refuse_window(file, architecture)
    c, w = read_decoder_config(file, architecture), WeightReader(file)
    moe = MoeConfig.read(file, architecture) if architecture == "qwen3moe" else None
    token_embd = w.get("token_embd.weight", c.vocab_size, c.hidden_size)
    return Qwen3(
        config=c,
        token_embd=token_embd,
        layers=tuple(_layer(w, c, moe, architecture, f"blk.{i}.") for i in range(c.num_layers)),
        output_norm=w.vector("output_norm.weight", c.hidden_size),
        output=w.maybe("output.weight", c.vocab_size, c.hidden_size) or token_embd,
    )


def _layer(
    w: WeightReader, c: DecoderConfig, moe: MoeConfig | None, architecture: str, name: str
) -> Qwen3Layer:
    h, heads, kv = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    biased = architecture == "qwen2"
    return Qwen3Layer(
        attn_norm=w.vector(name + "attn_norm.weight", h),
        q_proj=w.get(name + "attn_q.weight", heads, h),
        k_proj=w.get(name + "attn_k.weight", kv, h),
        v_proj=w.get(name + "attn_v.weight", kv, h),
        o_proj=w.get(name + "attn_output.weight", h, heads),
        q_bias=w.vector(name + "attn_q.bias", heads) if biased else None,
        k_bias=w.vector(name + "attn_k.bias", kv) if biased else None,
        v_bias=w.vector(name + "attn_v.bias", kv) if biased else None,
        q_norm=None if biased else w.vector(name + "attn_q_norm.weight", c.head_dim),
        k_norm=None if biased else w.vector(name + "attn_k_norm.weight", c.head_dim),
        ffn_norm=w.vector(name + "ffn_norm.weight", h),
        mlp=SwiGlu.load(w, name, h) if moe is None else moe.load(w, name, h),
    )


def _refuse_window(file: ModelFile, architecture: str) -> None:
    window = file.get(f"{architecture}.attention.sliding_window", int, 0)
    if window:
        raise UnsupportedError(
            f"{file.path}: {architecture} with a sliding window of {window} tokens is not supported; "
            f"full attention is"
        )
