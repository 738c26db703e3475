"""Models whose greedy continuation is known: the residual stays near the token, the head maps it to the next.

The output row of next(t) is the embedding of t, so greedy decoding walks a planted permutation. Embeddings
come from a few topics, so routing has the temporal locality that real text has. All other weights are random
blocks of real types, so every byte a real model would move is moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.errors import UsageError
from strata.gguf import TensorType
from strata.quants import FORMATS
from strata.synth.blocks import Bytes, Piece, Pool, fitting_type, random_pieces
from strata.synth.dial import noise_for
from strata.synth.files import Entry, Job, ParallelWriter
from strata.synth.gain import SHARP, energy, input_sizes, output_deviation
from strata.synth.geometry import FULL, Geometry
from strata.synth.layout import PLANES, Fill, Tensor, tensors
from strata.synth.metadata import metadata

ROWS = 8192  # of the embedding, at once
JOB_BYTES = 1 << 28
HEAD_SCALE = 0.05
# `general.file_type` of IQ3_XXS files (llama.cpp's llama_ftype).
FILE_TYPE = 23
OUTPUTS = ("ssm_out", "attn_output", "ffn_down_exps", "ffn_down_shexp")


@dataclass(frozen=True)
class PlantedOptions:
    """What to plant. `gain` None: chosen so that mixers and experts carry half of the residual's energy."""

    geometry: Geometry = FULL
    types: dict[str, str] = field(default_factory=dict)
    topics: int = 64
    noise: float = 1.0
    run: int = 200
    gain: float | None = 1.0
    router_std: float = 0.06
    draft_noise: float = 1.0
    draft_agreement: float | None = None  # chance that a draft is right; sets the noise
    sparse_table: bool = False
    seed: int = 7


@dataclass(frozen=True)
class Written:
    """What was written: bytes of the file, bytes of tensors (holes left out), and tensors."""

    nbytes: int
    filled: int
    tensors: int


def topics_and_cycle(options: PlantedOptions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Topic of every token, and the order of tokens: runs of one topic, shuffled."""
    rng, vocab = np.random.default_rng(options.seed), options.geometry.vocab_size
    topic = rng.integers(0, options.topics, vocab)
    runs = []
    for t in range(options.topics):
        ids = rng.permutation(np.flatnonzero(topic == t))
        runs += [ids[i : i + options.run] for i in range(0, len(ids), options.run)]
    order = rng.permutation(len(runs))
    return topic, np.concatenate([runs[i] for i in order])


def topic_borders(cycle: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """Topic at each place of a cycle planted with the default options, and the places where it changes."""
    geometry = replace(FULL, vocab_size=len(cycle))
    topic, expected = topics_and_cycle(PlantedOptions(geometry))
    if not np.array_equal(expected, cycle):
        raise UsageError(
            "the cycle was planted with options of its own: where its topics change is not known"
        )
    topics = topic[cycle]
    return topics, (np.flatnonzero(np.diff(topics)) + 1).tolist()


def draft_input(options: PlantedOptions, rng: np.random.Generator) -> NDArray[np.float32]:
    """A draft layer's join [hidden, 2 hidden]: the next token's embedding passes, the trunk's residual is noise beside
    it."""
    hidden = options.geometry.hidden_size
    noise = rng.standard_normal((hidden, hidden), dtype=np.float32)
    noise *= np.float32(_draft_noise(options) / sqrt(hidden))
    return np.concatenate([np.eye(hidden, dtype=np.float32), noise], axis=1)


def _draft_noise(o: PlantedOptions) -> float:
    if o.draft_agreement is None:
        return o.draft_noise
    own, others = o.noise / sqrt(1 + o.noise**2), o.geometry.vocab_size // o.topics - 1
    return noise_for(o.draft_agreement, o.geometry.hidden_size, own, max(others, 1))


def previous_tokens(cycle: NDArray[np.int64]) -> NDArray[np.int64]:
    """The token before each token."""
    previous = np.empty(len(cycle), np.int64)
    previous[cycle] = np.roll(cycle, 1)
    return previous


def embeddings(topic: NDArray[np.int64], options: PlantedOptions) -> NDArray[np.float16]:
    """Rows of unit deviation [vocab, hidden]: a topic's centre and noise of a token's own."""
    rng, noise, hidden = np.random.default_rng(options.seed + 1), options.noise, options.geometry.hidden_size
    centres = rng.standard_normal((int(topic.max()) + 1, hidden), dtype=np.float32)
    out = np.empty((len(topic), hidden), np.float16)
    for i in range(0, len(topic), ROWS):
        own = rng.standard_normal((len(topic[i : i + ROWS]), hidden), dtype=np.float32)
        out[i : i + ROWS] = (centres[topic[i : i + ROWS]] + noise * own) / np.sqrt(1 + noise**2)
    return out


def write_planted(path: str | Path, options: PlantedOptions, threads: int) -> Written:
    """Write the file with `threads` threads, and its cycle beside it as `<path>.cycle.npy`."""
    g = options.geometry.checked()
    if g.arch != "qwen4exp":
        raise UsageError(f"a planted {g.arch} is not supported; qwen4exp is")
    topic, cycle = topics_and_cycle(options)
    made = _Maker(options, Pool(options.seed))
    listed = list(tensors(g))
    entries = [made.entry(i, tensor) for i, tensor in enumerate(listed)]
    writer = ParallelWriter(Path(path), threads)
    writer.open(metadata(g, "planted qwen4exp", FILE_TYPE), entries)
    try:
        for entry in entries:
            writer.submit(entry)
        # The embedding's generator is serial; meanwhile the threads write everything else.
        rows = embeddings(topic, options)
        for tensor, entry in zip(listed, entries, strict=True):
            if tensor.fill in (Fill.EMBEDDING, Fill.HEAD):
                order = previous_tokens(cycle) if tensor.fill is Fill.HEAD else np.arange(len(cycle))
                scale = HEAD_SCALE if tensor.fill is Fill.HEAD else 1.0
                writer.submit(
                    Entry(entry.name, entry.ne, entry.type, _row_jobs(entry.type, rows, order, scale))
                )
        filled = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    np.save(f"{path}.cycle.npy", cycle)
    return Written(writer.nbytes, filled, len(entries))


def _row_jobs(
    kind: TensorType, rows: NDArray[np.float16], order: NDArray[np.int64], scale: float
) -> list[Job]:
    """Jobs that write `rows` in `order`, times `scale`."""
    row_bytes = kind.nbytes(rows.shape[1])

    def job(start: int) -> list[Piece]:
        values = rows[order[start : start + ROWS]].astype(np.float32)
        return [(start * row_bytes, encode(kind, values if scale == 1 else values * np.float32(scale)))]

    return [partial(job, start) for start in range(0, len(order), ROWS)]


def encode(kind: TensorType, x: NDArray[np.float32]) -> Bytes:
    """Blocks of real values; Q8_0 as planted files have always had it, codes from the scale unrounded."""
    if kind != TensorType.Q8_0:
        return FORMATS[kind.name].encode(x)
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(1) / 127
    out = np.empty((len(blocks), 34), np.uint8)
    out[:, :2] = d.astype(np.float16)[:, None].view(np.uint8)
    codes = np.where(d[:, None] > 0, blocks / np.maximum(d, 1e-20)[:, None], 0).round()
    out[:, 2:] = codes.astype(np.int8).view(np.uint8)
    return out


@dataclass(frozen=True)
class _Maker:
    """Makes the jobs of each tensor. Draws depend on seed and place in the file alone."""

    options: PlantedOptions
    pool: Pool

    def entry(self, i: int, t: Tensor) -> Entry:
        kind = self.type_of(t.plane, t.ne[0])
        return Entry(t.name, t.ne, kind, self._jobs(i, t, kind))

    def _jobs(self, i: int, t: Tensor, kind: TensorType) -> list[Job]:
        if t.fill in (Fill.EMBEDDING, Fill.HEAD):
            return []  # filled once the embeddings are drawn
        if t.fill is not Fill.RANDOM:
            return [lambda: [(0, self._special(i, t, kind))]]
        if t.plane == "table" and self.options.sparse_table:
            return []
        count, std, seed = int(np.prod(t.ne, dtype=np.int64)), self.deviation(t), [self.options.seed, i]

        def piece(begin: int, end: int) -> Iterator[Piece]:
            return random_pieces(self.pool, kind, count, std, np.random.default_rng(seed), begin, end)

        if not FORMATS[kind.name].quantised:
            return [partial(piece, 0, 0)]
        blocks, step = count // kind.block_values, JOB_BYTES // kind.block_bytes
        return [partial(piece, begin, min(begin + step, blocks)) for begin in range(0, blocks, step)]

    def _special(self, i: int, t: Tensor, kind: TensorType) -> Bytes:
        count = int(np.prod(t.ne, dtype=np.int64))
        if t.fill is Fill.ROUTER:
            return self._router(t, count)
        if t.fill is Fill.DRAFT_INPUT:
            return encode(kind, draft_input(self.options, np.random.default_rng([self.options.seed, i])))
        sharp = self.options.gain is None and t.name.endswith("attn_q_norm.weight")
        value = {Fill.NORM: SHARP if sharp else 1.0, Fill.STEP_BIAS: 0.5, Fill.DECAY: -0.3}[t.fill]
        return np.full(count, value, np.float32).view(np.uint8)

    def deviation(self, t: Tensor) -> float:
        """Of random values: the layout's, for the input width, times the gain where it writes back."""
        plane, options = t.name.split(".")[-2], self.options
        if plane in OUTPUTS and options.gain is None:
            return self._half_energy(plane, t)
        std = t.std * sqrt(t.fan / t.ne[0])
        if plane in OUTPUTS and options.gain is not None and options.gain != 1:
            return std * options.gain * (2 if plane.startswith("ffn") else 1)
        return std

    def _half_energy(self, plane: str, t: Tensor) -> float:
        o, g = self.options, self.options.geometry
        types = {name: self.type_of(name, g.hidden_size) for name in PLANES}
        sizes = input_sizes(types, g.num_experts, g.num_experts_per_tok, o.router_std)
        part = energy(g.num_layers, g.hidden_size, o.topics, o.noise) / (2 * g.num_layers)
        return output_deviation(plane, t.ne[0], self.type_of(t.plane, t.ne[0]), part, sizes[plane])

    def type_of(self, plane: str, k: int) -> TensorType:
        """The type of a plane's rows of k values."""
        return fitting_type((PLANES | self.options.types)[plane], k)

    def _router(self, t: Tensor, count: int) -> Bytes:
        rng = np.random.default_rng([self.options.seed, 99, int(t.name.split(".")[1])])
        std = self.options.router_std * sqrt(t.fan / t.ne[0])
        return (rng.standard_normal(count).astype(np.float32) * np.float32(std)).view(np.uint8)
