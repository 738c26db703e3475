"""Stage 5: compute-sanitizer over the cuda tests of whole models, and minutes of decoding with clocks and power."""

import os
import subprocess
import sys
import time

from gpu_check.common import Decoder, Report, gpu_state, load_gpu, say, synth

MINUTES = float(os.environ.get("STRATA_CHECK_MINUTES", "2"))
TOOLS = os.environ.get("STRATA_CHECK_TOOLS", "memcheck,racecheck").split(",")
TOOL_SECONDS = float(os.environ.get("STRATA_CHECK_TOOL_SECONDS", "150"))


def run(report: Report) -> None:
    for tool in TOOLS:
        report[tool] = _sanitize(tool)
        say(f"{tool}: {report[tool]['end']}")
    loaded = load_gpu(synth("dense-Q4_K.gguf", "dense", "--type", "Q4_K"), kv="int8", max_model_len=32768)
    decoder, end = Decoder(loaded), time.perf_counter() + 60 * MINUTES
    samples = []
    while time.perf_counter() < end:
        samples.append({**decoder.rate(0, 512, 1), "gpu": gpu_state()})
    report["sustained"] = samples


def _sanitize(tool: str) -> dict[str, object]:
    command = [
        "compute-sanitizer",
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "cuda",
    ]
    command += ["-p", "no:cacheprovider", "tests/cuda/test_models.py", "-k", "quantised"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TOOL_SECONDS, env=os.environ
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"rc": None, "end": str(error)[-600:]}
    return {"rc": done.returncode, "end": (done.stdout + done.stderr)[-1500:]}
