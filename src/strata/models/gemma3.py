"""gemma3 (Gemma team 2025): norms before and after each half, GeGLU, windows between layers that see everything."""

from dataclasses import dataclass

from strata.errors import ModelFileError
from strata.gguf import ModelFile
from strata.memory import StatePool, StateShape
from strata.models.decoder import DecoderConfig, read_decoder_config
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    LayerKV,
    RopeScaling,
    RopeStyle,
    Weight,
    add,
    attention,
    embed,
    gather_logit_rows,
    gelu_mul,
    head_norm,
    kv_store,
    linear,
    rms_norm,
    rope,
    rope_table,
    scale,
)

ARCHITECTURES = ("gemma3",)
PATTERN = 6  # every sixth layer sees the whole context, the others a window
LOCAL_THETA = 10_000.0  # of layers with a window; their positions are never scaled


@dataclass(frozen=True)
class Gemma3Layer:
    """Weights of one block; `window` 0 sees everything."""

    window: int
    attn_norm: Weight
    q_proj: Weight
    k_proj: Weight
    v_proj: Weight
    o_proj: Weight
    q_norm: Weight
    k_norm: Weight
    post_attn_norm: Weight
    ffn_norm: Weight
    gate_proj: Weight
    up_proj: Weight
    down_proj: Weight
    post_ffn_norm: Weight


@dataclass(frozen=True)
class Gemma3:
    """The model: weights as they lie in the file; the head is the embedding where the file has none."""

    config: DecoderConfig
    local_theta: float
    attention_scale: float
    token_embd: Weight
    layers: tuple[Gemma3Layer, ...]
    output_norm: Weight
    output: Weight

    def state_shape(self) -> StateShape:
        """Keys and values of every layer."""
        return StateShape(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)

    def forward(self, b: Builder, state: StatePool, table: Buffer, logits: Buffer) -> None:
        """Emits a step; `logits` [logit rows, vocab_size] receives what it ends in."""
        c = self.config
        local = b.constant("rope.local", lambda: self._local_table(table.shape[0]))
        x = scale(b, embed(b, self.token_embd), c.hidden_size**0.5)
        for i, layer in enumerate(self.layers):
            b.mark(f"layer.{i}")
            y = self._attention(b, x, layer, state.kv.layers[i], local if layer.window else table)
            x = add(b, x, rms_norm(b, y, layer.post_attn_norm, c.rms_eps))
            x = add(b, x, rms_norm(b, self._mlp(b, x, layer), layer.post_ffn_norm, c.rms_eps))
        b.mark("head", repeatable=True)
        x = rms_norm(b, gather_logit_rows(b, x), self.output_norm, c.rms_eps)
        linear(b, x, self.output, out=logits)

    def _local_table(self, max_positions: int) -> Buffer:
        return rope_table(max_positions, self.config.rope.dim, self.local_theta, RopeScaling())

    def _attention(self, b: Builder, x: Buffer, w: Gemma3Layer, kv: LayerKV, table: Buffer) -> Buffer:
        c = self.config
        x = rms_norm(b, x, w.attn_norm, c.rms_eps)
        q = head_norm(b, linear(b, x, w.q_proj), w.q_norm, c.rms_eps)
        k = head_norm(b, linear(b, x, w.k_proj), w.k_norm, c.rms_eps)
        q = rope(b, q, table, c.head_dim, RopeStyle.HALVES)
        k = rope(b, k, table, c.head_dim, RopeStyle.HALVES)
        kv_store(b, k, linear(b, x, w.v_proj), kv)
        y = attention(b, q, kv, c.num_heads, scale=self.attention_scale, window=w.window)
        return linear(b, y, w.o_proj)

    def _mlp(self, b: Builder, x: Buffer, w: Gemma3Layer) -> Buffer:
        x = rms_norm(b, x, w.ffn_norm, self.config.rms_eps)
        return linear(b, gelu_mul(b, linear(b, x, w.gate_proj), linear(b, x, w.up_proj)), w.down_proj)


def load(file: ModelFile) -> Gemma3:
    """Names to weights, every shape checked."""
    c, w = read_decoder_config(file, "gemma3"), WeightReader(file)
    window = file.get("gemma3.attention.sliding_window", int)
    if window < 1:
        raise ModelFileError(f"{file.path}: gemma3.attention.sliding_window is {window}; it must be positive")
    token_embd = w.get("token_embd.weight", c.vocab_size, c.hidden_size)
    return Gemma3(
        config=c,
        local_theta=file.get("gemma3.rope.freq_base_swa", float, LOCAL_THETA),
        attention_scale=_attention_scale(c),
        token_embd=token_embd,
        layers=tuple(_layer(w, c, i, 0 if (i + 1) % PATTERN == 0 else window) for i in range(c.num_layers)),
        output_norm=w.vector("output_norm.weight", c.hidden_size),
        output=w.maybe("output.weight", c.vocab_size, c.hidden_size) or token_embd,
    )


def _attention_scale(c: DecoderConfig) -> float:
    """1 / sqrt(head_dim), but of the 62-layer model 1 / sqrt(hidden_size / heads): its query_pre_attn_scalar is 168."""
    width = c.hidden_size // c.num_heads if c.num_layers == 62 else c.head_dim
    return float(width**-0.5)


def _layer(w: WeightReader, c: DecoderConfig, i: int, window: int) -> Gemma3Layer:
    name, h, kv, heads = f"blk.{i}.", c.hidden_size, c.num_kv_heads * c.head_dim, c.num_heads * c.head_dim
    gate = w.get(name + "ffn_gate.weight", -1, h)
    width = gate.shape[0]
    return Gemma3Layer(
        window=window,
        attn_norm=w.vector(name + "attn_norm.weight", h),
        q_proj=w.get(name + "attn_q.weight", heads, h),
        k_proj=w.get(name + "attn_k.weight", kv, h),
        v_proj=w.get(name + "attn_v.weight", kv, h),
        o_proj=w.get(name + "attn_output.weight", h, heads),
        q_norm=w.vector(name + "attn_q_norm.weight", c.head_dim),
        k_norm=w.vector(name + "attn_k_norm.weight", c.head_dim),
        post_attn_norm=w.vector(name + "post_attention_norm.weight", h),
        ffn_norm=w.vector(name + "ffn_norm.weight", h),
        gate_proj=gate,
        up_proj=w.get(name + "ffn_up.weight", width, h),
        down_proj=w.get(name + "ffn_down.weight", h, width),
        post_ffn_norm=w.vector(name + "post_ffw_norm.weight", h),
    )
