"""Every tensor of a made-up model in file order: name, shape, plane (decides its type) and filling."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from strata.synth.geometry import PLAIN, ROUTED, Geometry


class Fill(Enum):
    """How a tensor's values are drawn."""

    RANDOM = auto()
    NORM = auto()
    STEP_BIAS = auto()
    DECAY = auto()
    EMBEDDING = auto()
    HEAD = auto()
    ROUTER = auto()
    DRAFT_INPUT = auto()


@dataclass(frozen=True)
class Tensor:
    """`ne` has the input dimension first. `std`: of random values, for the input width `fan` at full size."""

    name: str
    ne: tuple[int, ...]
    plane: str
    fill: Fill = Fill.RANDOM
    std: float = 0.02
    fan: int = 2560


# Types that real files of the family use; "float" is what every engine expects in F32.
PLANES = {
    "embd": "Q8_0",
    "head": "Q8_0",
    "table": "IQ4_NL",
    "mixer": "BF16",
    "dense": "Q6_K",
    "indexer": "BF16",
    "ngram": "Q8_0",
    "gate": "IQ3_XXS",
    "up": "IQ3_XXS",
    "down": "Q2_0",
    "shared": "Q8_0",
    "draft": "Q8_0",
    "float": "F32",
}


def tensors(g: Geometry) -> Iterator[Tensor]:
    """All tensors: globals, then block by block; the draft layer last."""
    h, wide = g.hidden_size, g.num_streams * g.hidden_size
    streams = g.arch == "qwen4exp"
    yield Tensor("token_embd.weight", (h, g.vocab_size), "embd", Fill.EMBEDDING)
    yield Tensor("output.weight", (h, g.vocab_size), "head", Fill.HEAD)
    if streams:
        yield from _mixer(g, "output_hc_")
        if g.ngram_layer is not None:
            ne = (g.ngram_width, g.ngram_rows)
            yield Tensor("per_layer_token_embd.weight", ne, "table", std=0.05, fan=g.ngram_width)
    else:
        yield _norm("output_norm", h)
    for i in range(g.num_blocks):
        b = f"blk.{i}."
        yield from _block(g, i, b)
        if i == g.num_layers:
            yield from _draft(g, b, wide if streams else h)


def _norm(name: str, width: int) -> Tensor:
    return Tensor(name + ".weight", (width,), "float", Fill.NORM)


def _mixer(g: Geometry, prefix: str) -> Iterator[Tensor]:
    wide, rank = g.num_streams * g.hidden_size, g.stream_rank
    yield _norm(prefix + "norm", wide)
    yield Tensor(prefix + "down.weight", (wide, rank), "mixer", std=0.002, fan=10240)
    yield Tensor(prefix + "up.weight", (rank, wide), "mixer", std=0.02, fan=320)


def _block(g: Geometry, i: int, b: str) -> Iterator[Tensor]:
    h, wide = g.hidden_size, g.num_streams * g.hidden_size
    if g.arch == "qwen4exp":
        for side in ("attn", "ffn"):
            yield from _mixer(g, f"{b}hc_{side}_")
            yield Tensor(f"{b}hc_{side}_inject.weight", (wide, g.num_streams), "float", std=0.001, fan=10240)
    else:
        yield _norm(b + "attn_norm", h)
        yield _norm(b + ("ffn_norm" if g.arch in PLAIN else "post_attention_norm"), h)
    yield from _attention(g, b) if g.is_attention(i) else _delta(g, b)
    if g.arch == "qwen4exp" and i == g.ngram_layer:
        yield from _ngram(g, b)
    yield from _experts(g, b) if g.arch in ROUTED else _dense(g, b)


def _attention(g: Geometry, b: str) -> Iterator[Tensor]:
    h, heads, kv = g.hidden_size, g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim
    gated = g.arch not in PLAIN
    yield Tensor(b + "attn_q.weight", (h, 2 * heads if gated else heads), "dense")
    yield Tensor(b + "attn_k.weight", (h, kv), "dense")
    yield Tensor(b + "attn_v.weight", (h, kv), "dense")
    yield Tensor(b + "attn_output.weight", (heads, h), "dense", std=0.001, fan=6144)
    if g.arch == "llama":
        return
    yield _norm(b + "attn_q_norm", g.head_dim)
    yield _norm(b + "attn_k_norm", g.head_dim)
    if g.arch == "qwen4exp":
        yield Tensor(b + "indexer.q_proj.weight", (h, g.index_heads * g.index_dim), "indexer")
        yield Tensor(b + "indexer.k_proj.weight", (h, g.index_dim), "indexer")
        yield _norm(b + "indexer.q_norm", g.index_dim)
        yield _norm(b + "indexer.k_norm", g.index_dim)


def _delta(g: Geometry, b: str) -> Iterator[Tensor]:
    h, values = g.hidden_size, g.value_heads * g.state_dim
    yield Tensor(b + "attn_qkv.weight", (h, g.delta_channels), "dense")
    yield Tensor(b + "attn_gate.weight", (h, values), "dense")
    yield Tensor(b + "ssm_conv1d.weight", (g.conv_kernel, g.delta_channels), "float", std=0.3, fan=4)
    yield Tensor(b + "ssm_dt.bias", (g.value_heads,), "float", Fill.STEP_BIAS)
    yield Tensor(b + "ssm_a", (g.value_heads,), "float", Fill.DECAY)
    if g.arch == "qwen3next":
        yield Tensor(b + "ssm_ba.weight", (h, 2 * g.value_heads), "float")
    else:
        yield Tensor(b + "ssm_beta.weight", (h, g.value_heads), "float")
        yield Tensor(b + "ssm_alpha.weight", (h, g.value_heads), "float")
    yield _norm(b + "ssm_norm", g.state_dim)
    yield Tensor(b + "ssm_out.weight", (values, h), "dense", std=0.001, fan=6144)


def _ngram(g: Geometry, b: str) -> Iterator[Tensor]:
    wide = g.num_streams * g.hidden_size
    yield Tensor(b + "ple_key.weight", (g.ngram_inputs, wide), "ngram")
    yield Tensor(b + "ple_value.weight", (g.ngram_inputs, g.hidden_size), "ngram", std=0.001)
    for name in ("key", "query", "conv"):
        yield _norm(f"{b}ple_norm_{name}", wide)
    yield Tensor(b + "ple_conv1d.weight", (4, wide), "float", std=0.001, fan=4)


def _experts(g: Geometry, b: str) -> Iterator[Tensor]:
    h, f, shared, n = g.hidden_size, g.moe_intermediate_size, g.shared_intermediate_size, g.num_experts
    yield Tensor(b + "ffn_gate_inp.weight", (h, n), "float", Fill.ROUTER, std=0.06)
    yield Tensor(b + "ffn_gate_exps.weight", (h, f, n), "gate")
    yield Tensor(b + "ffn_up_exps.weight", (h, f, n), "up")
    yield Tensor(b + "ffn_down_exps.weight", (f, h, n), "down", std=0.004, fan=640)
    if g.arch == "qwen3moe":
        return
    yield Tensor(b + "ffn_gate_inp_shexp.weight", (h,), "float")
    yield Tensor(b + "ffn_gate_shexp.weight", (h, shared), "shared")
    yield Tensor(b + "ffn_up_shexp.weight", (h, shared), "shared")
    yield Tensor(b + "ffn_down_shexp.weight", (shared, h), "shared", std=0.002, fan=640)


def _dense(g: Geometry, b: str) -> Iterator[Tensor]:
    h, f = g.hidden_size, g.intermediate_size
    yield Tensor(b + "ffn_gate.weight", (h, f), "dense")
    yield Tensor(b + "ffn_up.weight", (h, f), "dense")
    yield Tensor(b + "ffn_down.weight", (f, h), "dense", std=0.004, fan=640)


def _draft(g: Geometry, b: str, width: int) -> Iterator[Tensor]:
    h = g.hidden_size
    yield Tensor(b + "nextn.eh_proj.weight", (2 * h, h), "draft", Fill.DRAFT_INPUT)
    yield _norm(b + "nextn.enorm", h)
    yield _norm(b + "nextn.hnorm", width)
    if g.arch == "qwen4exp":
        yield from _mixer(g, b + "nextn.hc_head_")
    else:
        yield _norm(b + "nextn.shared_head_norm", h)
