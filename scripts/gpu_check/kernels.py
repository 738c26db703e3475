"""Stage 1: what the machine is; the tests marked cuda, which compile the kernels they meet."""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from gpu_check.common import Report, gpu_state, say, shell
from strata.backends.cuda import compile as compiler
from strata.backends.cuda import open_gpu

RESULTS = Path("build/gpu-check/tests.xml")


def run(report: Report) -> None:
    report["gpu"] = gpu_state()
    report["cpu"] = shell("lscpu")
    report["nvrtc"] = ".".join(map(str, compiler.version()))
    begin = time.perf_counter()
    backend = open_gpu(0)
    report["open_s"] = round(time.perf_counter() - begin, 2)
    report["properties"] = vars(backend.driver.properties)
    say(f"{backend.driver.properties}, NVRTC {report['nvrtc']}")
    report["tests"] = _tests()


def _tests() -> dict[str, object]:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-x" if os.environ.get("FIRST") else "-q"]
    command += [
        "-p",
        "no:cacheprovider",
        f"--junitxml={RESULTS}",
        "tests/cuda",
        "tests/contract/test_cuda.py",
    ]
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=float(os.environ.get("STRATA_CHECK_TEST_SECONDS", "450")),
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    suite = next(iter(ET.parse(RESULTS).getroot().iter("testsuite")))
    failures = {
        f"{case.get('classname')}::{case.get('name')}": (bad.get("message") or "")[:600]
        for case in suite.iter("testcase")
        for bad in (*case.findall("failure"), *case.findall("error"))
    }
    counts = {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")}
    return {**counts, "failed": failures, "seconds": round(time.perf_counter() - begin, 1)}
