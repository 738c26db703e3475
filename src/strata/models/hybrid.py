"""The trunk that Qwen3-Next and Qwen3.5 share: pre-norm blocks of delta rule or gated attention, then feed-forward."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from strata.errors import ModelFileError
from strata.gguf import ModelFile
from strata.memory import StatePool, StateShape
from strata.models.delta_mixer import DeltaMixer
from strata.models.draft_pass import DraftPass, Keep
from strata.models.gated_attention import GatedAttention
from strata.models.metadata import Metadata, RopeConfig
from strata.models.mixers import mixer_state
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    Rotary,
    Weight,
    add,
    concat,
    embed,
    gather_logit_rows,
    linear,
    rms_norm,
    rotary_axes,
)


class FeedForward(Protocol):
    """The second half of a block."""

    def forward(self, b: Builder, x: Buffer) -> Buffer:
        """[rows, hidden] from the normed input."""


LoadFeedForward = Callable[[WeightReader, str, int], FeedForward]  # reader, block prefix, hidden size


@dataclass(frozen=True)
class HybridConfig:
    """Numbers of the model; counts come from tensors where tensors have them."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    rms_eps: float
    rope: RopeConfig


@dataclass(frozen=True)
class Block:
    """Weights of one block."""

    attn_norm: Weight
    mixer: GatedAttention | DeltaMixer
    ffn_norm: Weight
    ffn: FeedForward

    def forward(
        self, b: Builder, x: Buffer, state: StatePool, rotary: Rotary, eps: float, window: int = 0
    ) -> Buffer:
        """The residual after the block; `window`: of attention."""
        normed = rms_norm(b, x, self.attn_norm, eps)
        if isinstance(self.mixer, DeltaMixer):
            x = add(b, x, self.mixer.forward(b, normed, state))
        else:
            x = add(b, x, self.mixer.forward(b, normed, state, rotary, window))
        return add(b, x, self.ffn.forward(b, rms_norm(b, x, self.ffn_norm, eps)))

    def store(self, b: Builder, x: Buffer, state: StatePool, rotary: Rotary, eps: float) -> None:
        """The cells of an attention block alone."""
        assert isinstance(self.mixer, GatedAttention)
        self.mixer.store(b, rms_norm(b, x, self.attn_norm, eps), state, rotary)


@dataclass(frozen=True)
class Hybrid:
    """The model: weights as they lie in the file."""

    config: HybridConfig
    token_embd: Weight
    blocks: tuple[Block, ...]
    output_norm: Weight
    output: Weight  # the embedding again where the file ties them
    axes: Buffer
    draft: "HybridDraft | None" = None

    def state_shape(self) -> StateShape:
        """What a sequence carries; the draft layer's keys and values come last."""
        drafted = (self.draft.block,) if self.draft is not None else ()
        return mixer_state([block.mixer for block in (*self.blocks, *drafted)])

    def forward(
        self, b: Builder, state: StatePool, table: Buffer, logits: Buffer, keep: Keep | None = None
    ) -> None:
        """Emits a step; `logits` [logit rows, vocab_size] receives what it ends in, `keep` the normed residual of every
        row [rows, hidden_size], which a draft layer reads."""
        eps, rotary = self.config.rms_eps, Rotary(table, self.axes)
        x = embed(b, self.token_embd)
        for i, block in enumerate(self.blocks):
            b.mark(f"layer.{i}")
            x = block.forward(b, x, state, rotary, eps)
        if keep is not None:
            keep(b, rms_norm(b, x, self.output_norm, eps))
        b.mark("head", repeatable=True)
        linear(b, rms_norm(b, gather_logit_rows(b, x), self.output_norm, eps), self.output, out=logits)

    @property
    def draft_width(self) -> int:
        """Values of a row that the draft layer reads and gives."""
        return self.config.hidden_size

    def draft_forward(self, b: Builder, state: StatePool, table: Buffer, run: DraftPass) -> None:
        """Emits a pass of the draft layer, which must be attached."""
        assert self.draft is not None
        self.draft.forward(b, state, Rotary(table, self.axes), self.config.rms_eps, run)

    def draft_cells(
        self, b: Builder, state: StatePool, table: Buffer, hidden: Buffer, tokens: Buffer | None = None
    ) -> None:
        """Emits what stores the rows' cells of the draft layer."""
        assert self.draft is not None
        self.draft.store(b, state, Rotary(table, self.axes), self.config.rms_eps, hidden, tokens)


@dataclass(frozen=True)
class HybridDraft:
    """The draft layer: position i's normed residual and token i + 1 give a guess at token i + 2, in cell i."""

    token_embd: Weight
    embd_norm: Weight
    hidden_norm: Weight
    join_proj: Weight  # [hidden, 2 * hidden], the embedding's columns first
    block: Block
    output_norm: Weight
    output: Weight

    def forward(self, b: Builder, state: StatePool, rotary: Rotary, eps: float, run: DraftPass) -> None:
        """Emits a pass of the draft layer, whose rows' hidden width is hidden_size."""
        x = self.block.forward(b, self._joined(b, eps, run.hidden), state, rotary, eps, run.window)
        x = rms_norm(b, x, self.output_norm, eps)
        run.keep(b, x)
        b.mark("head", repeatable=True)
        run.head(b, gather_logit_rows(b, x), self.output)

    def store(
        self, b: Builder, state: StatePool, rotary: Rotary, eps: float, hidden: Buffer, tokens: Buffer | None
    ) -> None:
        """Emits the rows' cells alone; `tokens`: those after the rows' positions, in the place of the step's."""
        self.block.store(b, self._joined(b, eps, hidden, tokens), state, rotary, eps)

    def _joined(self, b: Builder, eps: float, hidden: Buffer, tokens: Buffer | None = None) -> Buffer:
        x = rms_norm(b, embed(b, self.token_embd, tokens), self.embd_norm, eps)
        h = rms_norm(b, hidden, self.hidden_norm, eps)
        return linear(b, concat(b, x, h, 0, h.shape[-1]), self.join_proj)


def load_hybrid(file: ModelFile, feed_forward: LoadFeedForward) -> Hybrid:
    """Names to weights, every shape checked; a block with `ssm_out` is a delta-rule block. Output gates are silu."""
    w, m = WeightReader(file), Metadata.of(file)
    hidden = m.positive("embedding_length")
    token_embd = w.get("token_embd.weight", -1, hidden)
    num_layers = m.positive("block_count") - m.whole("nextn_predict_layers", 0)
    blocks: list[Block] = []
    places = {True: 0, False: 0}
    for i in range(num_layers):
        delta = f"blk.{i}.ssm_out.weight" in w
        blocks.append(load_block(w, m, i, hidden, places[delta], feed_forward))
        places[delta] += 1
    if not places[False]:
        raise ModelFileError(f"{file.path}: none of {num_layers} blocks has full attention")
    rope = RopeConfig.read(m, m.positive("attention.key_length"))
    return Hybrid(
        config=HybridConfig(
            num_layers, hidden, token_embd.shape[0], m.real("attention.layer_norm_rms_epsilon"), rope
        ),
        token_embd=token_embd,
        blocks=tuple(blocks),
        output_norm=w.vector("output_norm.weight", hidden),
        output=w.maybe("output.weight", token_embd.shape[0], hidden) or token_embd,
        axes=rotary_axes(rope.dim // 2, rope.sections),
    )


def attach_hybrid_draft(model: Hybrid, file: ModelFile, feed_forward: LoadFeedForward) -> Hybrid:
    """The model with the draft layer of `file`, which may lack the embedding and the head: they are the model's."""
    w, m, hidden = WeightReader(file), Metadata.of(file), model.config.hidden_size
    i = m.positive("block_count") - m.whole("nextn_predict_layers", 0)
    prefix, vocab = f"blk.{i}.nextn.", model.config.vocab_size
    place = sum(isinstance(block.mixer, GatedAttention) for block in model.blocks)
    draft = HybridDraft(
        token_embd=w.maybe(prefix + "embed_tokens.weight", vocab, hidden) or model.token_embd,
        embd_norm=w.vector(prefix + "enorm.weight", hidden),
        hidden_norm=w.vector(prefix + "hnorm.weight", hidden),
        join_proj=w.get(prefix + "eh_proj.weight", hidden, 2 * hidden),
        block=load_block(w, m, i, hidden, place, feed_forward),
        output_norm=w.vector(prefix + "shared_head_norm.weight", hidden),
        output=w.maybe(prefix + "shared_head_head.weight", vocab, hidden) or model.output,
    )
    return replace(model, draft=draft)


def load_block(
    w: WeightReader, m: Metadata, i: int, hidden: int, place: int, feed_forward: LoadFeedForward
) -> Block:
    """Block i; `place` counts the blocks of its kind before it."""
    prefix = f"blk.{i}."
    mixer: GatedAttention | DeltaMixer
    if prefix + "ssm_out.weight" in w:
        mixer = DeltaMixer.load(w, m, prefix, hidden, place, silu_gate=True)
    else:
        mixer = GatedAttention.load(w, m, prefix, hidden, place, indexer=None)
    return Block(
        attn_norm=w.vector(prefix + "attn_norm.weight", hidden),
        mixer=mixer,
        ffn_norm=w.vector(prefix + "post_attention_norm.weight", hidden),
        ffn=feed_forward(w, prefix, hidden),
    )
