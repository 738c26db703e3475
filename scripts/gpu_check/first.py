"""Stage 0: whether everything is right, the shortest first. Each step has a verdict of its own; after one that fails,
hangs or loses the GPU a new process goes on with the next."""

import json
import queue
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from gpu_check.common import Report, say
from gpu_check.first_steps import STEPS, WANTED
from gpu_check.rehearsal import sized
from gpu_check.wanted import Wanted
from strata.errors import DeviceError

_LIMIT = sized(90.0, 300.0)  # seconds of a step
_MARK = "\x1e"  # begins a line that is a result


def run(report: Report) -> None:
    left = list(STEPS)
    while left:
        found = _work(report, left)
        left = left[found:]


def _work(report: Report, names: list[str]) -> int:
    """Steps that a process of its own did, the one included that it did not survive."""
    command = [sys.executable, "-m", "gpu_check.first", *names]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(worker.stdout, lines), daemon=True).start()
    done, begin = 0, time.perf_counter()
    while done < len(names):
        try:
            line = lines.get(timeout=max(begin + _LIMIT - time.perf_counter(), 0.01))
        except queue.Empty:
            worker.kill()
            return done + _failed(report, names[done], f"no answer in {_LIMIT:.0f} s")
        if line is None:
            worker.wait()
            return done or _failed(report, names[0], f"its process ended with {worker.returncode}")
        if line.startswith(_MARK):
            name, found = json.loads(line[1:])
            _tell(report, name, found)
            done, begin = done + 1, time.perf_counter()
        else:
            print(line, end="", flush=True)
    worker.wait()
    return done


def _pump(source: Any, lines: "queue.Queue[str | None]") -> None:
    for line in source:
        lines.put(line)
    lines.put(None)


def _failed(report: Report, name: str, why: str) -> int:
    _tell(report, name, {"good": False, "error": why})
    return 1


def _tell(report: Report, name: str, found: Report) -> None:
    report[name] = found
    told = {k: v for k, v in found.items() if k not in ("good", "error")}
    if "error" in found:
        told["error"] = found["error"].strip().splitlines()[-1]
    say(f"{'good ' if found['good'] else 'WRONG'} {name}: {told}")


def work(names: list[str]) -> None:
    """Steps one after another, a line each; ends after one that loses the GPU."""
    wanted = Wanted(WANTED)
    for name in names:
        begin, lost = time.perf_counter(), False
        try:
            found: Report = STEPS[name](wanted)
            found["good"] = all(value is not False for value in found.values())
        except Exception as error:
            lost = isinstance(error, DeviceError)
            found = {"good": False, "error": traceback.format_exc()[-2000:]}
        found["s"] = round(time.perf_counter() - begin, 1)
        print(_MARK + json.dumps([name, found], default=str), flush=True)
        if lost:
            return


if __name__ == "__main__":
    work(sys.argv[1:])
