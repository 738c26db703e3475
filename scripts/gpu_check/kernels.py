"""Stages 1 and 13: what the machine is; the tests marked cuda, whole models first, then single ops."""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_check.common import Report, gpu_state, say, shell
from gpu_check.rehearsal import EMULATED, open_gpu
from strata.backends.cuda import compile as compiler

RESULTS = Path("build/gpu-check")
SECONDS = float(os.environ.get("STRATA_CHECK_TEST_SECONDS", "420"))  # for all tests of a stage
AT_ONCE = 4  # test processes, each on cores of its own; kernels are compiled once, whoever needs them first

# What a mistake would show in first comes first. Files that are in neither list belong to the second.
TELLING = ["tests/cuda/test_models.py", "tests/cuda/test_fused.py", "tests/cuda/test_ahead.py"]
SINGLE = ["tests/cuda/test_dense_ops.py", "tests/contract/test_cuda.py"]


def run(report: Report) -> None:
    """Stage 1."""
    report["gpu"] = gpu_state()
    report["cpu"] = shell("lscpu")
    report["nvrtc"] = ".".join(map(str, compiler.version()))
    begin = time.perf_counter()
    backend = open_gpu(0)
    report["open_s"] = round(time.perf_counter() - begin, 2)
    report["properties"] = vars(backend.driver.properties)
    say(f"{backend.driver.properties}, NVRTC {report['nvrtc']}")
    report["tests"] = run_tests(TELLING)


def run_single(report: Report) -> None:
    """Stage 13."""
    found = sorted(str(p) for p in Path("tests").rglob("test_*.py") if _is_marked(p))
    report["tests"] = run_tests([*SINGLE, *(f for f in found if f not in (*TELLING, *SINGLE))])


def _is_marked(path: Path) -> bool:
    """Whether a file may have tests for a GPU: marked itself, or by the driver of tests/cuda/conftest.py."""
    text = path.read_text(encoding="utf-8")
    uses = path.parent.name == "cuda" and ("backend" in text or "driver" in text)
    return uses or "mark.cuda" in text


def run_tests(files: list[str]) -> Report:
    """Each file in a process of its own, some at once; those that end too late are named with what had run."""
    end = time.perf_counter() + SECONDS
    cores = sorted(os.sched_getaffinity(0))
    each = max(len(cores) // AT_ONCE, 1)
    shares = [set(cores[i * each : (i + 1) * each]) or set(cores) for i in range(AT_ONCE)]

    def one(file: str) -> Report:
        share = shares.pop()
        try:
            return _run_file(file, share, end - time.perf_counter())
        finally:
            shares.append(share)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(files, pool.map(one, files), strict=True))


def _run_file(file: str, cores: set[int], seconds: float) -> Report:
    if seconds < 10:
        say(f"{file}: left out, no time")
        return {"left out": True}
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = RESULTS / f"{Path(file).stem}.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "--durations=5", "-p", "no:cacheprovider"]
    command += ["--collect-only"] if EMULATED else []
    command += [f"--junitxml={results}", file, *(["-x"] if os.environ.get("FIRST") else [])]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        text = done.stdout[-3000:] + done.stderr[-1500:]
    except subprocess.TimeoutExpired as error:
        text = f"over {seconds:.0f} s: {(error.stdout or b'')[-800:]!r}"
    found = _read(results) | {"seconds": round(time.perf_counter() - begin, 1)}
    if "tests" not in found or found["failed"]:
        found["end"] = text
    say(f"{file}: { ({k: v for k, v in found.items() if k != 'end'}) }\n{text[-1200:]}")
    return found


def _read(results: Path) -> Report:
    if not results.exists():
        return {"ended": False, "failed": {}}
    suite = next(iter(ET.parse(results).getroot().iter("testsuite")))
    failures = {
        f"{case.get('classname')}::{case.get('name')}": (bad.get("message") or "")[:600]
        for case in suite.iter("testcase")
        for bad in (*case.findall("failure"), *case.findall("error"))
    }
    return {**{k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")}, "failed": failures}
