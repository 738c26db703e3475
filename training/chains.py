"""How many drafted tokens a model accepts at temperature 0: the draft layer's, and a bigram table's."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.model import Model

AHEAD = 4


@dataclass
class Kept:
    """Keys and values of one draft of every position, [batch, heads, time, dim]."""

    keys: Tensor
    values: Tensor


def attend(q: Tensor, drafts: list[Kept]) -> Tensor:
    """Draft n reads at position p its own cell and those of drafts n - 1, .. before it, then draft 1's further back."""
    first, time = drafts[0], q.shape[2]
    logits = q @ first.keys.transpose(-1, -2)
    for back, kept in enumerate(reversed(drafts[1:])):
        rows = torch.arange(back, time)
        own = (q[:, :, back:] * kept.keys[:, :, : time - back]).sum(-1)
        logits[:, :, rows, rows - back] = own
    later = torch.ones(time, time, dtype=torch.bool).triu(1)
    shares = torch.softmax(logits.masked_fill(later, -torch.inf) / q.shape[-1] ** 0.5, dim=-1)
    out = shares @ first.values
    for back, kept in enumerate(reversed(drafts[1:])):
        rows = torch.arange(back, time)
        share = shares[:, :, rows, rows - back].unsqueeze(-1)
        out[:, :, back:] += share * (kept.values - first.values)[:, :, : time - back]
    return out


@torch.no_grad()
def drafts(model: Model, tokens: Tensor, ahead: int = AHEAD) -> list[Tensor]:
    """tokens [batch, time]. Draft n's guess [batch, time - 1] at token p + 2, from cell p, given that the drafts before
    it were right."""
    residual, following = model.run(tokens).residual[:, :-1], tokens[:, 1:]
    embedding, block, head = model.model.embed_tokens(following), model.mtp.layers[0], model.lm_head
    rope, found, kept = model.rope(following.shape[1]), [], []
    for _ in range(ahead):
        x = model.mtp.joined(residual, embedding, model.dtype)
        u, normed = block.attn_hyper_connection.read(x, model.dtype)
        q, k, v, gate = block.self_attn.project(u, rope)
        repeat = block.self_attn.heads // block.self_attn.kv_heads
        kept.append(Kept(k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)))
        y = attend(q, kept).transpose(1, 2).flatten(-2) * torch.sigmoid(gate)
        x = block.attn_hyper_connection.write(x, normed, block.self_attn.o_proj(y))
        u, normed = block.mlp_hyper_connection.read(x, model.dtype)
        x = block.mlp_hyper_connection.write(x, normed, block.mlp(u)[0])
        hidden, _ = model.mtp.hyper_connection_mixer.read(x, model.dtype)
        found.append(head(hidden).argmax(-1))
        residual = F.pad(x[:, :-1], (0, 0, 1, 0))
    return found


def accepted(guesses: list[np.ndarray], tokens: np.ndarray, prompt: int) -> list[float]:
    """Share of anchors in the generated part of tokens [batch, time] at which the first n guesses are all right."""
    time = tokens.shape[1]
    anchors = np.arange(prompt - 1, time - len(guesses) - 1)
    right, shares = np.ones((len(tokens), len(anchors)), bool), []
    for n, guess in enumerate(guesses):
        right &= guess[:, anchors + n] == tokens[:, anchors + n + 2]
        shares.append(float(right.mean()))
    return shares


class Bigrams:
    """Counts of what follows each token."""

    def __init__(self, tokens: np.ndarray, vocab: int):
        self.vocab = vocab
        pairs, counts = np.unique(tokens[:-1].astype(np.int64) * vocab + tokens[1:], return_counts=True)
        self.left, self.right, self.counts = pairs // vocab, pairs % vocab, counts
        self.unigrams = np.bincount(tokens, minlength=vocab) + 0.5
        self.totals = np.bincount(self.left, counts, minlength=vocab)
        self.kinds = np.bincount(self.left, minlength=vocab)
        order = np.lexsort((counts, self.left))
        self.best = np.full(vocab, int(self.unigrams.argmax()))
        self.best[self.left[order]] = self.right[order]

    def guesses(self, tokens: np.ndarray, ahead: int = AHEAD) -> list[np.ndarray]:
        """As `drafts`: each guess follows the token before it."""
        return [self.best[tokens[:, 1:]] for _ in range(ahead)]

    def perplexity(self, tokens: np.ndarray) -> float:
        """Witten-Bell smoothing with unigrams (Witten and Bell 1991)."""
        keys = self.left * self.vocab + self.right
        wanted = tokens[:-1].astype(np.int64) * self.vocab + tokens[1:]
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        seen = np.where(keys[at] == wanted, self.counts[at], 0)
        left, kinds = self.totals[tokens[:-1]], self.kinds[tokens[:-1]]
        unigram = self.unigrams[tokens[1:]] / self.unigrams.sum()
        shares = (seen + np.maximum(kinds, 1) * unigram) / (left + np.maximum(kinds, 1))
        return float(np.exp(-np.log(shares).mean()))
