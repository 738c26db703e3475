"""The stages by number, the files they read, and running one of them."""

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_check import (
    common,
    decide,
    dense,
    draft_spans,
    drafts,
    equality,
    first,
    kernels,
    kv_tier,
    losing,
    ngram_rows,
    nodes,
    planted,
    prompt_times,
    prompts,
    sanitized,
    sustained,
    tiers,
    tune,
)  # fmt: skip
from strata.backends.cuda import kernel_cache

STAGES = {
    0: first.run, 1: kernels.run, 2: equality.run, 3: dense.run, 4: planted.run, 5: sustained.run, 6: tune.run,
    7: nodes.run, 8: kv_tier.run, 9: ngram_rows.run, 10: losing.run, 11: prompts.run, 12: sanitized.run,
    13: kernels.run_single, 14: tiers.run, 15: prompt_times.run, 16: drafts.run, 17: decide.run_tiers,
    18: decide.run_resident, 19: drafts.run_tiers, 20: draft_spans.run,
}  # fmt: skip

_DENSE = tuple(f"dense-{kind}.gguf" for kind in dense.KINDS)
FILES_OF: dict[int, tuple[str, ...]] = {  # in /dev/shm
    0: ("dense-1.gguf", "delta-2.gguf", "attention-1.gguf", "planted-4.gguf"),
    2: ("planted-8.gguf", "dense-4.gguf"), 3: _DENSE, 4: ("planted.gguf",), 5: ("dense-Q4_K.gguf",), 6: _DENSE,
    7: ("planted-8.gguf",), 8: ("planted-8-few.gguf", "planted-8.gguf"), 10: ("planted-2.gguf",),
    12: ("planted-2.gguf", "planted-narrow.gguf"), 14: ("planted.gguf", "planted-4.gguf"),
    15: ("planted.gguf", "planted-8.gguf"),
    16: ("planted.gguf",), 17: ("planted.gguf",), 18: ("planted.gguf",), 19: ("planted.gguf",), 20: ("planted.gguf",),
}  # fmt: skip
KEPT = ("planted.gguf", "planted-4.gguf")  # for the next call on the same machine


def run_stage(number: int, out: Path) -> int:
    """0 where everything is right. The report is saved after every line that is said, so that what cuts the stage
    short leaves what it found."""
    report: dict[str, Any] = {"build_s": int(os.environ.get("STRATA_CHECK_BUILD_SECONDS", "0"))}
    begin, images = time.perf_counter(), _images()

    def save() -> None:
        report["seconds"], report["kernels compiled"] = (
            round(time.perf_counter() - begin, 1),
            _images() - images,
        )
        report["wrong"] = list(wrong(report))
        part = out / f"stage-{number}.part"
        part.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(out / f"stage-{number}.json")

    common.after_each[:] = [save]
    try:
        STAGES[number](report)
    except Exception:
        report["error"] = traceback.format_exc()
        print(report["error"], file=sys.stderr)
    save()
    return int("error" in report or bool(report["wrong"]))


def _images() -> int:
    """Compiled kernels that are kept."""
    return len(list(kernel_cache().glob("*.cubin")))


def wrong(report: Any, place: str = "") -> Iterator[str]:
    """Where a report says False: stages report what must be so."""
    if report is False:
        yield place
    items = (
        report.items() if isinstance(report, dict) else enumerate(report) if isinstance(report, list) else ()
    )
    for name, value in items:
        yield from wrong(value, f"{place}/{name}".lstrip("/"))
