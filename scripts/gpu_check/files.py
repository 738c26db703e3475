"""Made-up model files that stages share, each made once a machine: by whoever asks first, or in the background."""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_check.rehearsal import sized, small
from strata.synth import DENSE, FULL, DenseOptions, PlantedOptions, ngram_base_for, write_dense, write_planted

Options = PlantedOptions | DenseOptions

WORK = Path(os.environ.get("STRATA_CHECK_WORK", sized("/dev/shm/strata-check", "/dev/shm/strata-rehearsal")))
DISK = sized(Path("/tmp/strata-check"), WORK)  # for what is read by direct reads
TABLE_ROWS = 320_001_536  # of the n-gram table at full size: 28.8 GB, a hole in the file
TYPES = {
    "gate": "IQ3_XXS", "up": "IQ3_XXS", "down": "Q2_0", "dense": "Q6_K", "shared": "Q8_0", "mixer": "BF16",
    "embd": "Q8_0", "head": "Q8_0", "table": "IQ4_NL",
}  # fmt: skip


def planted(gain: float | None = 1.0, sparse_table: bool = False, **sizes: Any) -> PlantedOptions:
    """As `strata synth planted` has it; gain None: half of the residual's energy."""
    return PlantedOptions(replace(FULL, **sizes), types=TYPES, gain=gain, sparse_table=sparse_table)


def dense(kind: str, layers: int = 32) -> DenseOptions:
    """As `strata synth dense` has it."""
    return DenseOptions(kind, replace(DENSE, num_layers=layers))


def _with_table() -> PlantedOptions:
    base = ngram_base_for(TABLE_ROWS, 2 * FULL.heads_per_ngram)
    return planted(sparse_table=True, num_layers=8, num_experts=64, ngram_base=base)


_FEW_TOKENS = 32768  # the embedding's generator is serial: 8 s for the full vocabulary
FILES: dict[str, Callable[[], Options]] = {
    "planted.gguf": lambda: planted(draft=True),
    "planted-4.gguf": lambda: planted(8.0, num_layers=4, draft=True, vocab_size=_FEW_TOKENS),
    "planted-8.gguf": lambda: planted(None, num_layers=8),
    "planted-8-few.gguf": lambda: planted(None, num_layers=8, num_experts=64),
    "planted-few.gguf": lambda: planted(num_layers=8, num_experts=64),
    "planted-few-table.gguf": _with_table,
    # One layer with the delta rule and n-grams, one with attention; no model is without attention.
    "planted-2.gguf": lambda: planted(
        None, num_layers=2, interval=2, ngram_layer=0, num_experts=32, vocab_size=8192
    ),
    # Half the width and few experts, for tools under which kernels take a thousand times as long.
    "planted-narrow.gguf": lambda: planted(
        None,
        num_layers=2,
        interval=2,
        ngram_layer=0,
        hidden_size=1280,
        num_heads=8,
        key_heads=4,
        value_heads=8,
        stream_rank=32,
        num_experts=12,
        num_experts_per_tok=4,
        vocab_size=1024,
    ),
    "delta-2.gguf": lambda: planted(8.0, num_layers=2, interval=2, ngram_layer=0, vocab_size=8192),
    "attention-1.gguf": lambda: planted(8.0, num_layers=1, interval=1, ngram_layer=None, vocab_size=8192),
    "dense-1.gguf": lambda: dense("Q4_K", 1),
    "dense-4.gguf": lambda: dense("Q4_K", 4),
    "dense-Q4_K.gguf": lambda: dense("Q4_K"),
    "dense-Q8_0.gguf": lambda: dense("Q8_0"),
    "dense-F16.gguf": lambda: dense("F16"),
}


def model_file(name: str, work: Path = WORK) -> Path:
    """The file of that name, made where it is not there; waits for another process that is making it."""
    path = work / name
    work.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (path.exists() and path.with_suffix(".whole").exists()):
            _make(path, sized(FILES[name](), small(FILES[name]())))
            path.with_suffix(".whole").touch()
    return path


def _make(path: Path, options: Options) -> None:
    begin, threads = time.perf_counter(), len(os.sched_getaffinity(0))
    if isinstance(options, PlantedOptions):
        write_planted(path, options, threads)
    else:
        write_dense(path, options, threads)
    seconds = time.perf_counter() - begin
    print(f"{path.name}: {path.stat().st_size / 1e9:.2f} GB in {seconds:.1f} s", flush=True)


def forget(names: list[str]) -> None:
    """Gives the memory of files back that nobody asks for any more."""
    for name in names:
        for path in (WORK / name, WORK / f"{name}.cycle.npy", (WORK / name).with_suffix(".whole")):
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        model_file(each)
