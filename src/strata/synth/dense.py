"""Random models of architecture llama of a given size and type, for speed only."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from strata.gguf import Typed, ValueType
from strata.synth.blocks import Piece, Pool, fitting_type, random_pieces
from strata.synth.files import Entry, ParallelWriter
from strata.synth.geometry import Geometry, tiny_geometry
from strata.synth.layout import Fill, Tensor, tensors

POOL_SEED, STD, FILE_TYPE = 3, 0.02, 1
DENSE = replace(
    tiny_geometry("llama"),
    num_layers=32,
    hidden_size=2560,
    vocab_size=32000,
    max_position=65536,
    num_heads=20,
    num_kv_heads=5,
    head_dim=128,
    rotary_dim=128,
    rms_eps=1e-5,
    intermediate_size=6912,
    eos=1,
    bos=2,
)


@dataclass(frozen=True)
class DenseOptions:
    """Sizes, and the type of all matrices; embedding and head are Q8_0, or F16 with F16."""

    type: str
    geometry: Geometry = DENSE


def write_dense(path: str | Path, options: DenseOptions, threads: int) -> int:
    """Write the file; returns its bytes."""
    pool = Pool(POOL_SEED)
    listed = list(tensors(options.geometry.checked()))
    entries = [_entry(pool, options.type, i, tensor) for i, tensor in enumerate(listed)]
    writer = ParallelWriter(Path(path), threads)
    writer.open(_metadata(options.geometry), entries)
    try:
        for entry in entries:
            writer.submit(entry)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return writer.nbytes


def _entry(pool: Pool, type_name: str, i: int, t: Tensor) -> Entry:
    outer = t.fill in (Fill.EMBEDDING, Fill.HEAD)
    name = "F32" if t.plane == "float" else ("Q8_0" if outer and type_name != "F16" else type_name)
    kind = fitting_type(name, t.ne[0])
    count = int(np.prod(t.ne, dtype=np.int64))

    def job() -> list[Piece]:
        return [(0, np.ones(count, np.float32).view(np.uint8))]

    if t.plane == "float":
        return Entry(t.name, t.ne, kind, [job])
    return Entry(
        t.name, t.ne, kind, [lambda: random_pieces(pool, kind, count, STD, np.random.default_rng(i))]
    )


def _metadata(g: Geometry) -> dict[str, Any]:
    """Few keys, and a vocabulary of made-up words, as these files have always had them."""
    own = {
        "block_count": g.num_layers,
        "context_length": g.max_position,
        "embedding_length": g.hidden_size,
        "feed_forward_length": g.intermediate_size,
        "attention.head_count": g.num_heads,
        "attention.head_count_kv": g.num_kv_heads,
        "attention.layer_norm_rms_epsilon": g.rms_eps,
        "rope.freq_base": g.rope_theta,
        "rope.dimension_count": g.head_dim,
        "vocab_size": g.vocab_size,
    }
    head = {"general.architecture": "llama", "general.name": "dense", "general.file_type": FILE_TYPE}
    return (
        head
        | {f"llama.{key}": value for key, value in own.items()}
        | {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(g.vocab_size)],
            "tokenizer.ggml.token_type": Typed([1] * g.vocab_size, ValueType.INT32),
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.eos_token_id": g.eos,
            "tokenizer.ggml.bos_token_id": g.bos,
        }
    )
