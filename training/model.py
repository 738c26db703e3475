"""qwen4exp for training: the trunk and its draft layer. Parameter names are those of a published checkpoint."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.attention import GatedAttention, Rope
from training.basic import Linear, Norm, rope_tables
from training.config import ModelConfig
from training.delta import CHUNK, DeltaMixer
from training.experts import MixtureOfExperts
from training.ngram import NgramLayer
from training.streams import StreamMixer


class Block(nn.Module):
    """One layer: mixer and experts, each between a read and a write of the streams."""

    def __init__(self, c: ModelConfig, kind: str, ngram: bool = False):
        super().__init__()
        if kind == "linear_attention":
            self.linear_attn = DeltaMixer(c)
        else:
            self.self_attn = GatedAttention(c)
        self.mlp = MixtureOfExperts(c)
        if ngram:
            self.ple = NgramLayer(c)
        self.attn_hyper_connection, self.mlp_hyper_connection = StreamMixer(c), StreamMixer(c)
        self.kind, self.ngram = kind, ngram

    def forward(
        self, residual: Tensor, tokens: Tensor, rope: Rope, dtype: torch.dtype, sparse: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The residual after the layer, the load-balance loss, and the mixer's input (for the indexer)."""
        if self.ngram:
            residual = self.ple(residual, tokens, dtype)
        x, normed = self.attn_hyper_connection.read(residual, dtype)
        y = self.linear_attn(x) if self.kind == "linear_attention" else self.self_attn(x, rope, sparse)
        residual = self.attn_hyper_connection.write(residual, normed, y)
        u, normed = self.mlp_hyper_connection.read(residual, dtype)
        y, balance = self.mlp(u)
        return self.mlp_hyper_connection.write(residual, normed, y), balance, x


class Trunk(nn.Module):
    """Embedding and layers."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(
            Block(c, kind, i == c.ngram_layer) for i, kind in enumerate(c.layer_types)
        )
        self.hyper_connection_mixer = StreamMixer(c, inject=False)


class Draft(nn.Module):
    """The draft layer: the trunk's residual at position i and token i + 1 give a guess at token i + 2."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.count, self.hidden = c.hc_count, c.hidden_size
        self.fc_embedding, self.fc_hidden = (Linear(c.hidden_size, c.hidden_size) for _ in range(2))
        self.pre_fc_norm_embedding = Norm(c.hidden_size, eps=c.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm(c.wide, c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList([Block(c, "full_attention")])
        self.hyper_connection_mixer = StreamMixer(c, inject=False)

    def joined(self, residual: Tensor, embedding: Tensor, dtype: torch.dtype) -> Tensor:
        """The layer's residual: every stream of the trunk's beside the same embedding."""
        hidden = self.pre_fc_norm_hidden(residual, dtype).unflatten(-1, (self.count, self.hidden))
        embedded = self.fc_embedding(self.pre_fc_norm_embedding(embedding, dtype))
        return (self.fc_hidden(hidden) + embedded.unsqueeze(-2)).flatten(-2).float()


@dataclass
class Output:
    """What a pass through the trunk leaves."""

    residual: Tensor  # [batch, time, wide], float32
    hidden: Tensor  # [batch, time, hidden], ready for the head
    balance: Tensor  # load-balance loss, mean over layers
    mixer_inputs: list[Tensor]  # of every layer


class Model(nn.Module):
    """Trunk, head and draft layer."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.config = c
        self.model, self.mtp = Trunk(c), Draft(c)
        self.lm_head = Linear(c.hidden_size, c.vocab_size)
        self.dtype = torch.float32

    def rope(self, time: int) -> Rope:
        """Tables for positions 0 to time."""
        positions = torch.arange(time, device=self.lm_head.weight.device)
        return rope_tables(positions, self.config.rotary_dim, self.config.rope_theta)

    def run(self, tokens: Tensor, sparse: bool = False) -> Output:
        """tokens [batch, time]; the time is filled up to whole chunks inside."""
        time = tokens.shape[1]
        tokens = F.pad(tokens, (0, -time % CHUNK), value=self.config.eos_token_id)
        rope = self.rope(tokens.shape[1])
        residual = self.model.embed_tokens(tokens).float().repeat(1, 1, self.config.hc_count)
        losses, inputs = [], []
        for block in self.model.layers:
            residual, balance, x = block(residual, tokens, rope, self.dtype, sparse)
            losses.append(balance)
            inputs.append(x)
        hidden, _ = self.model.hyper_connection_mixer.read(residual, self.dtype)
        return Output(residual[:, :time], hidden[:, :time], torch.stack(losses).mean(), inputs)

    def forward(self, tokens: Tensor, sparse: bool = False) -> Tensor:
        """Logits [batch, time, vocab]."""
        return self.lm_head(self.run(tokens, sparse).hidden)

    def draft(self, residual: Tensor, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`following` [batch, time]: the token after each position. The next draft's residual, what the head reads,
        and the load-balance loss. Embedding and trunk are not taught by it."""
        embedding = self.model.embed_tokens(following).detach()
        x = self.mtp.joined(residual, embedding, self.dtype)
        x, balance, _ = self.mtp.layers[0](x, following, self.rope(x.shape[1]), self.dtype, False)
        hidden, _ = self.mtp.hyper_connection_mixer.read(x, self.dtype)
        return x, hidden, balance

    def indexer_loss(self, inputs: list[Tensor], queries: Tensor) -> Tensor:
        """Mean over layers with an indexer, at these positions."""
        rope = self.rope(inputs[0].shape[1])
        found = [
            block.self_attn.indexer_loss(x, rope, queries)
            for block, x in zip(self.model.layers, inputs, strict=True)
            if block.kind == "full_attention"
        ]
        return torch.stack(found).mean()
