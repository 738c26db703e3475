"""Stage 10: decoding with an n-gram table of full size (28.8 GB, a hole in the file) in RAM, through the map, and by
direct reads from the disk, beside a table of 29 MB; 8 planted layers of few experts."""

import time
from pathlib import Path
from typing import Any

from gpu_check import common
from gpu_check.common import Decoder, Report, load_gpu, say, synth

ROWS = 320_001_536
DISK = Path("/tmp/strata-check")


def run(report: Report) -> None:
    common.WORK = DISK  # direct reads need a file system of a disk
    few = ("--layers", "8", "--experts", "64", "--no-draft")
    small = synth("planted-few.gguf", "planted", *few)
    report["small table"] = _rates(small, "ram")
    large = synth("planted-few-table.gguf", "planted", *few, "--ngram-rows", str(ROWS))
    for mode in ("ram", "map", "direct"):
        report[mode] = _rates(large, mode)


def _rates(path: Path, mode: str) -> dict[str, Any]:
    begin = time.perf_counter()
    loaded = load_gpu(path, kv="int8", max_model_len=2048, max_num_seqs=32, ngram_table=mode)
    found: dict[str, Any] = {"load_s": round(time.perf_counter() - begin, 1)}
    for rows in (1, 32):
        decoder = Decoder(loaded, rows)
        found[str(rows)] = decoder.rate(64, 64, 5)
        kernels = decoder.table()["kernels"]
        found[f"{rows} nodes"] = [
            k for k in kernels if "ngram_rows" in k["kernel"] or "table_rows" in k["kernel"]
        ]
        for s in range(rows):
            loaded.runner.pages.free(s)
    say(f"{path.name} {mode}: {found}")
    return found
