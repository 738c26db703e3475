"""Stage 9: decoding with an n-gram table of full size (28.8 GB, a hole in the file) in RAM, through the map, and by
direct reads from the disk, beside a table of 29 MB; 8 planted layers of few experts."""

import time
from pathlib import Path
from typing import Any

from gpu_check.common import Decoder, Report, on_gpu, say
from gpu_check.files import DISK, model_file


def run(report: Report) -> None:
    report["small table"] = _rates(model_file("planted-few.gguf", DISK), "ram")
    large = model_file("planted-few-table.gguf", DISK)  # direct reads need a file system of a disk
    for mode in ("ram", "map", "direct"):
        report[mode] = _rates(large, mode)


def _rates(path: Path, mode: str) -> dict[str, Any]:
    begin = time.perf_counter()
    with on_gpu(path, kv="int8", max_model_len=2048, max_num_seqs=32, ngram_table=mode) as loaded:
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
