"""Hashed n-gram embeddings (MODEL_SPEC 2.8): rows of a table picked by the last tokens, gated by the streams."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.basic import DepthwiseConv, Linear, Norm, rms_norm
from training.config import ModelConfig
from training.fused import fused

PAD_ROWS = 128  # the table is padded to a multiple (make_ngram_vocab_size_divisible_by)
_MASK, _GAMMA = (1 << 64) - 1, 0x9E3779B97F4A7C15


def multipliers(c: ModelConfig) -> list[int]:
    """Odd numbers, one per token of an n-gram, by SplitMix64 (Steele, Lea and Flood 2014) from the seed.

    As `strata.convert.ngram` has it; here again because a training machine need not have the package.
    """
    half, found = max(1, (2**63 - 1) // c.vocab_size // 2), []
    for i in range(c.ngram_size):
        value = (c.seed + _GAMMA * (i + 2)) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        found.append(2 * ((value ^ (value >> 31)) % half) + 1)
    return found


def head_sizes(base: int, heads: int) -> list[int]:
    """The first primes from `base` on."""
    found: list[int] = []
    while len(found) < heads:
        if all(base % divisor for divisor in range(2, math.isqrt(base) + 1)):
            found.append(base)
        base += 1
    return found


class NgramTable(nn.Module):
    """Tokens [batch, time] to joined rows [batch, time, heads * width]."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        heads = (c.ngram_size - 1) * c.heads_per_ngram
        sizes = torch.tensor(head_sizes(c.ngram_vocab_size_base, heads))
        self.register_buffer("ngram_heads_vocab_sizes", sizes)
        self.register_buffer("ngram_heads_offsets", sizes.cumsum(0) - sizes)
        self.register_buffer("layer_multipliers", torch.tensor(multipliers(c)))
        rows = -(-int(sizes.sum()) // PAD_ROWS) * PAD_ROWS
        self.ngram_embedding = nn.Embedding(rows, c.ple_embed_dim // heads)
        nn.init.normal_(self.ngram_embedding.weight, std=0.3)
        self.size, self.per_order, self.eos = c.ngram_size, c.heads_per_ngram, c.eos_token_id

    def rows(self, tokens: Tensor) -> Tensor:
        """int64 [batch, time, heads]."""
        mixed, found = tokens * self.layer_multipliers[0], []
        context, cut = tokens, torch.zeros_like(tokens, dtype=torch.bool)
        for back in range(1, self.size):
            context = F.pad(tokens, (back, 0), value=self.eos)[:, : tokens.shape[1]]
            cut = cut | (context == self.eos)
            mixed = mixed ^ (torch.where(cut, self.eos, context) * self.layer_multipliers[back])
            heads = slice((back - 1) * self.per_order, back * self.per_order)
            rows = mixed.unsqueeze(-1) % self.ngram_heads_vocab_sizes[heads]
            found.append(rows + self.ngram_heads_offsets[heads])
        return torch.cat(found, dim=-1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.ngram_embedding(self.rows(tokens)).flatten(-2)


class NgramLayer(nn.Module):
    """Adds to the residual [batch, time, count * hidden]."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.count, self.hidden = c.hc_count, c.hidden_size
        self.ple_embedding = NgramTable(c)
        self.key_proj = Linear(c.ple_embed_dim, c.wide)
        self.value_proj = Linear(c.ple_embed_dim, c.hidden_size)
        self.norm_key, self.norm_query, self.norm_conv = (
            Norm(c.wide, c.hidden_size, c.rms_norm_eps) for _ in range(3)
        )
        self.conv1d = DepthwiseConv(c.wide, c.ple_conv_kernel_size, dilation=c.ngram_size)

    def forward(self, residual: Tensor, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        found = self.ple_embedding(tokens).to(dtype).flatten(0, 1)
        norms = (self.norm_key.weight, self.norm_query.weight, self.norm_conv.weight)
        key, value, flat = self.key_proj(found), self.value_proj(found), residual.flatten(0, 1)
        gated, normed = _gate(key, value, flat, *norms, self.count, self.norm_key.eps)
        convolved = self.conv1d(normed.view_as(residual)).flatten(0, 1)
        return _added(flat, gated, convolved).view_as(residual)


@fused
def _gate(
    key: Tensor,
    value: Tensor,
    residual: Tensor,
    of_key: Tensor,
    of_query: Tensor,
    of_conv: Tensor,
    count: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """What every stream takes of the value, and the same normed for the convolution; rows."""
    hidden = value.shape[1]
    key = rms_norm(key, of_key, hidden, eps).view(len(key), count, hidden)
    query = rms_norm(residual, of_query, hidden, eps).view_as(key)
    score = (key * query).sum(-1, keepdim=True) / math.sqrt(hidden)
    score = score.abs().clamp_min(1e-6).sqrt() * score.sign()
    gated = (torch.sigmoid(score) * value.unsqueeze(1).float()).flatten(1)
    return gated, rms_norm(gated, of_conv, hidden, eps).to(value.dtype)


@fused
def _added(residual: Tensor, gated: Tensor, convolved: Tensor) -> Tensor:
    return residual + gated + F.silu(convolved.float())
