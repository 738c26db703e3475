"""qwen4exp (Qwen3.8-Flash-Next): residual streams, delta rule, sparse attention, an n-gram layer, many experts."""

from dataclasses import dataclass, replace

from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import ModelFile
from strata.memory import StatePool, StateShape
from strata.models.delta_mixer import DeltaMixer
from strata.models.draft_pass import DraftPass, Keep
from strata.models.gated_attention import GatedAttention, Indexer
from strata.models.hyper import HyperConnection
from strata.models.metadata import Metadata, RopeConfig
from strata.models.mixers import mixer_state
from strata.models.moe import MoeConfig, MoeWeights
from strata.models.ngram_layer import NgramLayer
from strata.models.weights import WeightReader
from strata.ops import (
    Buffer,
    Builder,
    Rotary,
    Weight,
    cell_positions,
    concat,
    copy_columns,
    embed,
    gather_logit_rows,
    grouped_norm,
    linear,
    rms_norm,
    rotary_axes,
    stream_tile,
)

ARCHITECTURES = ("qwen4exp",)


@dataclass(frozen=True)
class Qwen4ExpConfig:
    """Numbers of the model; counts come from tensors where tensors have them."""

    num_layers: int
    hidden_size: int
    streams: int
    vocab_size: int
    rope: RopeConfig


@dataclass(frozen=True)
class Block:
    """Weights of one block."""

    ngram: NgramLayer | None
    attn_streams: HyperConnection
    mixer: GatedAttention | DeltaMixer
    ffn_streams: HyperConnection
    moe: MoeWeights

    def forward(
        self,
        b: Builder,
        residual: Buffer,
        state: StatePool,
        rotary: Rotary,
        ngrams: Buffer | None = None,
        window: int = 0,
    ) -> Buffer:
        """The streams [rows, streams * hidden] after the block; `ngrams`: the step's rows of the n-gram table;
        `window`: of attention."""
        if self.ngram is not None:
            assert ngrams is not None
            residual = self.ngram.forward(b, residual, ngrams, state.rings[-1])
        x, inject = self.attn_streams.read(b, residual)
        if isinstance(self.mixer, DeltaMixer):
            y = self.mixer.forward(b, x, state)
        else:
            y = self.mixer.forward(b, x, state, rotary, window)
        residual = self.attn_streams.write(b, residual, y, inject)
        x, inject = self.ffn_streams.read(b, residual)
        return self.ffn_streams.write(b, residual, self.moe.forward(b, x), inject)

    def store(self, b: Builder, residual: Buffer, state: StatePool, rotary: Rotary) -> None:
        """The cells of an attention block alone."""
        assert isinstance(self.mixer, GatedAttention)
        self.mixer.store(b, self.attn_streams.read(b, residual)[0], state, rotary)


@dataclass(frozen=True)
class Qwen4ExpDraft:
    """The draft layer: position i's streams and token i + 1 give a guess at token i + 2, in cell i."""

    token_embd: Weight
    embd_norm: Weight
    hidden_norm: Weight  # [streams * hidden]
    join_proj: Weight  # [hidden, 2 * hidden], the embedding's columns first; for every stream
    block: Block
    head_streams: HyperConnection
    output: Weight

    def forward(self, b: Builder, state: StatePool, rotary: Rotary, run: DraftPass) -> None:
        """Emits a pass of the draft layer, whose rows' hidden width is streams * hidden_size."""
        if state.index:
            cell_positions(b, state.index[0].cells)
        x = self.block.forward(b, self._joined(b, run.hidden), state, rotary, window=run.window)
        run.keep(b, x)
        b.mark("head", repeatable=True)
        run.head(b, self.head_streams.mix(b, gather_logit_rows(b, x)), self.output)

    def store(
        self, b: Builder, state: StatePool, rotary: Rotary, hidden: Buffer, tokens: Buffer | None
    ) -> None:
        """Emits the rows' cells alone; `tokens`: those after the rows' positions, in the place of the step's."""
        if state.index:
            cell_positions(b, state.index[0].cells)
        self.block.store(b, self._joined(b, hidden, tokens), state, rotary)

    def _joined(self, b: Builder, hidden: Buffer, tokens: Buffer | None = None) -> Buffer:
        streams, eps = self.head_streams.streams, self.head_streams.eps
        e = rms_norm(b, embed(b, self.token_embd, tokens), self.embd_norm, eps)
        h, width = grouped_norm(b, hidden, self.hidden_norm, streams, eps), e.shape[-1]
        out = b.rows(streams * width, "streams", like=e)
        for c in range(streams):
            joined = linear(b, concat(b, e, h, c * width, width), self.join_proj)
            copy_columns(b, joined, out, 0, c * width, width)
        return out


@dataclass(frozen=True)
class Qwen4Exp:
    """The model: weights as they lie in the file."""

    config: Qwen4ExpConfig
    token_embd: Weight
    blocks: tuple[Block, ...]
    head_streams: HyperConnection  # stands for a final norm
    output: Weight
    axes: Buffer
    draft: Qwen4ExpDraft | None = None

    def state_shape(self) -> StateShape:
        """What a sequence carries; the n-gram layer's ring comes after those of the delta rule, the draft layer's keys
        after the trunk's."""
        drafted = (self.draft.block,) if self.draft is not None else ()
        shape = mixer_state([block.mixer for block in (*self.blocks, *drafted)])
        ngram = [block.ngram for block in self.blocks if block.ngram is not None]
        return replace(
            shape,
            rings=(*shape.rings, *(n.ring for n in ngram)),
            history=ngram[0].history if ngram else 0,
        )

    @property
    def draft_width(self) -> int:
        """Values of a row that the draft layer reads and gives."""
        return self.config.streams * self.config.hidden_size

    def draft_forward(self, b: Builder, state: StatePool, table: Buffer, run: DraftPass) -> None:
        """Emits a pass of the draft layer, which must be attached."""
        assert self.draft is not None
        self.draft.forward(b, state, Rotary(table, self.axes), run)

    def draft_cells(
        self, b: Builder, state: StatePool, table: Buffer, hidden: Buffer, tokens: Buffer | None = None
    ) -> None:
        """Emits what stores the rows' cells of the draft layer."""
        assert self.draft is not None
        self.draft.store(b, state, Rotary(table, self.axes), hidden, tokens)

    def forward(
        self, b: Builder, state: StatePool, table: Buffer, logits: Buffer, keep: Keep | None = None
    ) -> None:
        """Emits a step; `logits` [logit rows, vocab_size] receives what it ends in, `keep` the streams of every row
        [rows, streams * hidden_size] before the head, which a draft layer reads."""
        rotary = Rotary(table, self.axes)
        ngrams = self._ngrams(b, state)
        residual = stream_tile(b, embed(b, self.token_embd), self.config.streams)
        if state.index:
            cell_positions(b, state.index[0].cells)
        for i, block in enumerate(self.blocks):
            b.mark(f"layer.{i}")
            residual = block.forward(b, residual, state, rotary, ngrams)
        if keep is not None:
            keep(b, residual)
        b.mark("head", repeatable=True)
        linear(b, self.head_streams.mix(b, gather_logit_rows(b, residual)), self.output, out=logits)

    def _ngrams(self, b: Builder, state: StatePool) -> Buffer | None:
        layer = next((block.ngram for block in self.blocks if block.ngram is not None), None)
        if layer is None:
            return None
        assert state.history is not None
        return layer.look_up(b, state.history)


@dataclass
class _Places:
    """How many blocks of a kind were loaded."""

    delta: int = 0
    full: int = 0
    sparse: int = 0


def load(file: ModelFile) -> Qwen4Exp:
    """Names to weights, every shape checked; a block with `ssm_out` is a delta-rule block."""
    w, m = WeightReader(file), Metadata.of(file)
    hidden, streams = m.positive("embedding_length"), m.positive("hyper_connection.count")
    num_layers = m.positive("block_count") - m.whole("nextn_predict_layers", 0)
    places = _Places()
    blocks = tuple(_block(w, m, i, hidden, places) for i in range(num_layers))
    if not places.full:
        raise ModelFileError(f"{file.path}: none of {num_layers} blocks has full attention")
    token_embd = w.get("token_embd.weight", -1, hidden)
    rope = RopeConfig.read(m, m.positive("attention.key_length"))
    return Qwen4Exp(
        config=Qwen4ExpConfig(num_layers, hidden, streams, token_embd.shape[0], rope),
        token_embd=token_embd,
        blocks=blocks,
        head_streams=HyperConnection.load(w, m, "output_hc_", hidden, inject=False),
        output=w.maybe("output.weight", token_embd.shape[0], hidden) or token_embd,
        axes=rotary_axes(rope.dim // 2, rope.sections),
    )


def attach_draft(model: Qwen4Exp, file: ModelFile) -> Qwen4Exp:
    """The model with the draft layer of a file, which may lack the embedding and the head: they are the model's."""
    w, m, hidden, vocab = (
        WeightReader(file),
        Metadata.of(file),
        model.config.hidden_size,
        model.config.vocab_size,
    )
    i = m.positive("block_count") - m.whole("nextn_predict_layers", 0)
    prefix, full = f"blk.{i}.nextn.", [b.mixer for b in model.blocks if isinstance(b.mixer, GatedAttention)]
    places = _Places(full=len(full), sparse=sum(x.indexer is not None for x in full))
    draft = Qwen4ExpDraft(
        token_embd=w.maybe(prefix + "embed_tokens.weight", vocab, hidden) or model.token_embd,
        embd_norm=w.vector(prefix + "enorm.weight", hidden),
        hidden_norm=w.vector(prefix + "hnorm.weight", model.config.streams * hidden),
        join_proj=w.get(prefix + "eh_proj.weight", hidden, 2 * hidden),
        block=_block(w, m, i, hidden, places),
        head_streams=HyperConnection.load(w, m, prefix + "hc_head_", hidden, inject=False),
        output=w.maybe(prefix + "shared_head_head.weight", vocab, hidden) or model.output,
    )
    return replace(model, draft=draft)


def _block(w: WeightReader, m: Metadata, i: int, hidden: int, places: _Places) -> Block:
    prefix = f"blk.{i}."
    return Block(
        ngram=_ngram(w, m, i, hidden),
        attn_streams=HyperConnection.load(w, m, prefix + "hc_attn_", hidden),
        mixer=_mixer(w, m, i, hidden, places),
        ffn_streams=HyperConnection.load(w, m, prefix + "hc_ffn_", hidden),
        moe=MoeConfig.read(m.file, m.architecture).load(w, prefix, hidden),
    )


def _mixer(w: WeightReader, m: Metadata, i: int, hidden: int, places: _Places) -> GatedAttention | DeltaMixer:
    prefix = f"blk.{i}."
    if prefix + "ssm_out.weight" in w:
        places.delta += 1
        return DeltaMixer.load(w, m, prefix, hidden, places.delta - 1, silu_gate=False)
    ratios, indexer = m.numbers("attention.compress_ratios"), None
    if len(ratios) <= i:
        raise ModelFileError(
            f"{m.file.path}: {len(ratios)} attention.compress_ratios; block {i} has full attention and needs one"
        )
    if ratios[i]:
        indexer = Indexer.load(w, m, prefix, hidden, ratios[i], places.sparse)
        places.sparse += 1
    places.full += 1
    return GatedAttention.load(w, m, prefix, hidden, places.full - 1, indexer)


def _ngram(w: WeightReader, m: Metadata, i: int, hidden: int) -> NgramLayer | None:
    layers = m.numbers("ple.layers")
    if len(layers) > 1:
        raise UnsupportedError(f"{m.file.path}: {len(layers)} n-gram layers; one is supported")
    return NgramLayer.load(w, m, f"blk.{i}.", hidden) if i in layers else None
