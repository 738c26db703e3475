"""llama: pre-norm blocks of grouped-query attention and SwiGLU; rotary pairs adjacent, as GGUF permutes q and k."""

from dataclasses import dataclass

from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import StatePool, StateShape
from strata.models.decoder import DecoderConfig, read_decoder_config
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
    kv_store,
    linear,
    rms_norm,
    rope,
)

ARCHITECTURES = ("llama",)


@dataclass(frozen=True)
class LlamaLayer:
    """Weights of one block."""

    attn_norm: Weight
    q_proj: Weight
    k_proj: Weight
    v_proj: Weight
    o_proj: Weight
    q_bias: Weight | None
    k_bias: Weight | None
    v_bias: Weight | None
    o_bias: Weight | None
    ffn_norm: Weight
    mlp: SwiGlu


@dataclass(frozen=True)
class Llama:
    """The model: weights as they lie in the file."""

    config: DecoderConfig
    token_embd: Weight
    layers: tuple[LlamaLayer, ...]
    output_norm: Weight
    output: Weight  # the embedding again where the file ties them

    def state_shape(self) -> StateShape:
        """What a sequence carries."""
        return StateShape(self.config.num_layers, self.config.num_kv_heads, self.config.head_dim)

    def forward(self, b: Builder, state: StatePool, table: Buffer, logits: Buffer) -> None:
        """Emits a step; `logits` [logit rows, vocab_size] receives what it ends in."""
        x = embed(b, self.token_embd)
        for i, layer in enumerate(self.layers):
            b.mark(f"layer.{i}")
            x = add(b, x, self._attention(b, x, layer, state.kv.layers[i], table))
            x = add(b, x, layer.mlp.forward(b, rms_norm(b, x, layer.ffn_norm, self.config.rms_eps)))
        b.mark("head", repeatable=True)
        x = rms_norm(b, gather_logit_rows(b, x), self.output_norm, self.config.rms_eps)
        linear(b, x, self.output, out=logits)

    def _attention(self, b: Builder, x: Buffer, w: LlamaLayer, kv: LayerKV, table: Buffer) -> Buffer:
        c = self.config
        x = rms_norm(b, x, w.attn_norm, c.rms_eps)
        q, k, v = (
            linear(b, x, p) for p in (w.q_proj, w.k_proj, w.v_proj)
        )  # neighbours, so that a GPU joins them
        q, k, v = add_bias(b, q, w.q_bias), add_bias(b, k, w.k_bias), add_bias(b, v, w.v_bias)
        q = rope(b, q, table, c.head_dim, RopeStyle.ADJACENT)
        k = rope(b, k, table, c.head_dim, RopeStyle.ADJACENT)
        kv_store(b, k, v, kv)
        y = attention(b, q, kv, c.num_heads, scale=c.head_dim**-0.5)
        return add_bias(b, linear(b, y, w.o_proj), w.o_bias)


def load(file: ModelFile) -> Llama:
    """Names to weights, every shape checked."""
    _refuse_experts(file)
    c = read_decoder_config(file, "llama")
    w = WeightReader(file)
    token_embd = w.get("token_embd.weight", c.vocab_size, c.hidden_size)
    return Llama(
        config=c,
        token_embd=token_embd,
        layers=tuple(_layer(w, c, i) for i in range(c.num_layers)),
        output_norm=w.vector("output_norm.weight", c.hidden_size),
        output=w.maybe("output.weight", c.vocab_size, c.hidden_size) or token_embd,
    )


def _layer(w: WeightReader, c: DecoderConfig, i: int) -> LlamaLayer:
    name, h, kv = f"blk.{i}.", c.hidden_size, c.num_kv_heads * c.head_dim
    heads = c.num_heads * c.head_dim
    return LlamaLayer(
        attn_norm=w.vector(name + "attn_norm.weight", h),
        q_proj=w.get(name + "attn_q.weight", heads, h),
        k_proj=w.get(name + "attn_k.weight", kv, h),
        v_proj=w.get(name + "attn_v.weight", kv, h),
        o_proj=w.get(name + "attn_output.weight", h, heads),
        q_bias=w.floats(name + "attn_q.bias", heads),
        k_bias=w.floats(name + "attn_k.bias", kv),
        v_bias=w.floats(name + "attn_v.bias", kv),
        o_bias=w.floats(name + "attn_output.bias", h),
        ffn_norm=w.vector(name + "ffn_norm.weight", h),
        mlp=SwiGlu.load(w, name, h),
    )


def _refuse_experts(file: ModelFile) -> None:
    experts = file.get("llama.expert_count", int, 0)
    if experts:
        raise UnsupportedError(f"{file.path}: llama with {experts} experts is not supported; dense llama is")
