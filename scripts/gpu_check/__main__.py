"""Runs one stage and writes its JSON, what was found before an error included."""

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path

from gpu_check import (
    dense,
    drafts,
    equality,
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

STAGES = {
    1: kernels.run, 2: equality.run, 3: dense.run, 4: planted.run, 5: sustained.run, 6: tune.run, 7: nodes.run,
    8: kv_tier.run, 9: ngram_rows.run, 10: losing.run, 11: prompts.run, 12: sanitized.run, 13: kernels.run_single,
    14: tiers.run, 15: prompt_times.run, 16: drafts.run,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check")
    parser.add_argument("--stage", type=int, choices=STAGES, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, object] = {"build_s": int(os.environ.get("STRATA_CHECK_BUILD_SECONDS", "0"))}
    begin, failed = time.perf_counter(), False
    try:
        STAGES[args.stage](report)
    except Exception:
        failed = True
        report["error"] = traceback.format_exc()
        print(report["error"], file=sys.stderr)
    report["seconds"] = round(time.perf_counter() - begin, 1)
    (args.out / f"stage-{args.stage}.json").write_text(json.dumps(report, indent=1, default=str) + "\n")
    print(f"stage {args.stage}: {'failed' if failed else 'done'} in {report['seconds']} s")
    return int(failed)


sys.exit(main())
