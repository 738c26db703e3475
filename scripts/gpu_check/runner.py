"""Runs stages one after another, each in a process of its own and none beyond the limit; what a stage has found when it
ends, is cut or breaks lies in DIR/stage-N.json."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpu_check import first_steps, images
from gpu_check.files import forget
from gpu_check.stages import FILES_OF, KEPT, STAGES, run_stage

_LEAST = 8.0  # seconds that are worth beginning a stage for


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check")
    parser.add_argument(
        "--stages", "--stage", metavar="N[:SECONDS],...", help="in order, with most seconds each"
    )
    parser.add_argument("--limit", type=float, default=1e9, metavar="SECONDS", help="of all stages together")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-check"))
    parser.add_argument("--wanted", action="store_true", help="compute the hashes that stage 0 wants, here")
    parser.add_argument("--images", action="store_true", help="compile all stages' kernels, here")
    parser.add_argument("--ahead", action="store_true", help="both")
    parser.add_argument("--here", type=int, choices=STAGES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.here is not None:
        return run_stage(args.here, args.out)
    if args.wanted or args.ahead:
        first_steps.write_wanted()
    if args.images or args.ahead:
        return images.make()
    return run_all(_parse(args.stages), args.limit, args.out) if args.stages else 0


def _parse(text: str) -> list[tuple[int, float]]:
    """(stage, seconds) of "0,4:200"."""
    found = []
    for part in text.split(","):
        number, _, seconds = part.partition(":")
        if int(number) not in STAGES:
            raise SystemExit(
                f"gpu-check: there is no stage {number}; there are {', '.join(map(str, STAGES))}"
            )
        found.append((int(number), float(seconds or 1e9)))
    return found


def run_all(stages: list[tuple[int, float]], limit: float, out: Path) -> int:
    """The number of stages that did not end well; files of later stages are made meanwhile."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stages end with this process
    begin, lines = time.perf_counter(), []
    names = list(dict.fromkeys(name for number, _ in stages for name in FILES_OF.get(number, ())))
    maker = (
        subprocess.Popen(["nice", sys.executable, "-m", "gpu_check.files", *names])
        if len(names) > 1
        else None
    )
    try:
        for i, (number, most) in enumerate(stages):
            left = limit - (time.perf_counter() - begin)
            if left < _LEAST:
                lines.append(f"stage {number}: left out, {left:.0f} s left")
                continue
            lines.append(f"stage {number}: {_run_apart(number, min(left, most), out)}")
            print(lines[-1], flush=True)
            later = {name for n, _ in stages[i + 1 :] for name in FILES_OF.get(n, ())}
            forget([name for name in FILES_OF.get(number, ()) if name not in (*later, *KEPT)])
    finally:
        if maker is not None:
            maker.terminate()
    print("\n".join(["", *lines, f"{time.perf_counter() - begin:.0f} s in all"]), flush=True)
    return sum(": good" not in line for line in lines)


def _command(number: int, out: Path) -> list[str]:
    return [sys.executable, "-m", "gpu_check", "--here", str(number), "--out", str(out)]


def _run_apart(number: int, seconds: float, out: Path) -> str:
    """How a stage in a process of its own ended."""
    kept = out / f"stage-{number}.json"
    kept.unlink(missing_ok=True)
    begin = time.perf_counter()
    process = subprocess.Popen(_command(number, out), process_group=0)
    try:
        code: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:  # also where this process is told to end
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    took = f"{time.perf_counter() - begin:.1f} s"
    if code == 0:
        return f"good, {took}"
    report = json.loads(kept.read_text()) if kept.exists() else {}
    report["ended"] = f"cut after {took}" if code is None else f"ended with {code} after {took}"
    kept.write_text(json.dumps(report, indent=1) + "\n")
    return f"{report['ended']}: {', '.join(report.get('wrong', [])) or 'see its last lines'}"
