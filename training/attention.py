"""Gated attention, and the indexer that picks the blocks of tokens it sees on long texts."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.basic import Linear, Norm, rotate
from training.config import ModelConfig

Rope = tuple[Tensor, Tensor]


class Indexer(nn.Module):
    """Scores complete blocks of `ratio` tokens for every query."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.heads, self.dim, self.ratio = c.indexer_n_heads, c.indexer_head_dim, c.indexer_compress_ratio
        self.keep = c.indexer_budget // c.indexer_compress_ratio
        self.index_qk_proj = Linear(c.hidden_size, (self.heads + 1) * self.dim)
        self.q_layernorm, self.k_layernorm = (
            Norm(self.dim, eps=c.rms_norm_eps),
            Norm(self.dim, eps=c.rms_norm_eps),
        )

    def scores(self, x: Tensor, rope: Rope, queries: Tensor) -> Tensor:
        """float32 [batch, len(queries), blocks] for queries at these positions; -inf where a block is not complete."""
        cos, sin = rope
        q, k = self.index_qk_proj(x).split([self.heads * self.dim, self.dim], dim=-1)
        q = rotate(
            self.q_layernorm(q.unflatten(-1, (self.heads, self.dim)))[:, queries], cos[queries], sin[queries]
        )
        blocks = x.shape[1] // self.ratio
        pooled = k[:, : blocks * self.ratio].unflatten(1, (blocks, self.ratio)).float().mean(2)
        starts = slice(0, blocks * self.ratio, self.ratio)
        keys = rotate(self.k_layernorm(pooled).unsqueeze(2), cos[starts], sin[starts])[:, :, 0]
        each = torch.einsum("bqhd,bkd->bqhk", q.float(), keys)
        found = F.relu(each).sum(2) / math.sqrt(self.dim)
        complete = torch.arange(blocks, device=x.device) < ((queries + 1) // self.ratio)[:, None]
        return found.masked_fill(~complete, -math.inf)

    def visible(self, x: Tensor, rope: Rope) -> Tensor:
        """bool [batch, time, time]: the best blocks and the unfinished tail."""
        time = x.shape[1]
        everyone = torch.arange(time, device=x.device)
        scores = self.scores(x, rope, everyone)
        best = scores.topk(min(self.keep, scores.shape[-1]), dim=-1).indices
        picked = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        seen = (picked & (scores > -math.inf)).repeat_interleave(self.ratio, dim=-1)
        seen = F.pad(seen, (0, time - seen.shape[-1]))
        tail = everyone >= ((everyone + 1) // self.ratio * self.ratio)[:, None]
        return seen | (tail & (everyone <= everyone[:, None]))


class GatedAttention(nn.Module):
    """x [batch, time, hidden] to the same."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = Linear(c.hidden_size, 2 * self.heads * self.dim)
        self.k_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.v_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, c.hidden_size, gain=0.5)
        self.q_norm, self.k_norm = Norm(self.dim, eps=c.rms_norm_eps), Norm(self.dim, eps=c.rms_norm_eps)
        self.indexer = Indexer(c)

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v [batch, heads, time, dim] and the gate [batch, time, heads * dim]."""
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2 * self.dim)).chunk(2, dim=-1)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        q, k = rotate(self.q_norm(q), *rope), rotate(self.k_norm(k), *rope)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), gate.flatten(-2)

    def forward(self, x: Tensor, rope: Rope, sparse: bool = False) -> Tensor:
        """`sparse`: see only what the indexer picks."""
        q, k, v, gate = self.project(x, rope)
        mask = self.indexer.visible(x, rope).unsqueeze(1) if sparse else None
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2) * torch.sigmoid(gate))

    def indexer_loss(self, x: Tensor, rope: Rope, queries: Tensor) -> Tensor:
        """KL from attention's share of each complete block, mean over heads, to the indexer's softmax.

        x is detached here, and so is attention: only the indexer learns.
        """
        x = x.detach()
        with torch.no_grad():
            q, k, _, _ = self.project(x, rope)
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            logits = (q[:, :, queries] @ k.transpose(-1, -2)).float() / math.sqrt(self.dim)
            later = torch.arange(x.shape[1], device=x.device) > queries[:, None]
            shares = torch.softmax(logits.masked_fill(later, -math.inf), dim=-1).mean(1)
            ratio = self.indexer.ratio
            shares = shares[..., : shares.shape[-1] // ratio * ratio].unflatten(-1, (-1, ratio)).sum(-1)
        scores = self.indexer.scores(x, rope, queries)
        shares = shares.masked_fill(scores == -math.inf, 0)
        shares = shares / shares.sum(-1, keepdim=True).clamp_min(1e-9)
        log_found = torch.log_softmax(scores, dim=-1).masked_fill(scores == -math.inf, 0)
        return (shares * (shares.clamp_min(1e-9).log() - log_found)).sum(-1).mean()
