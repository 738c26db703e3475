"""Stage 5: minutes of decoding with clocks and power."""

import os
import time

from gpu_check.common import Decoder, Report, gpu_state, load_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized

MINUTES = float(os.environ.get("STRATA_CHECK_MINUTES", sized("2", "0.02")))


def run(report: Report) -> None:
    loaded = load_gpu(model_file("dense-Q4_K.gguf"), kv="int8", max_model_len=sized(32768, 1024))
    decoder, end = Decoder(loaded), time.perf_counter() + 60 * MINUTES
    report["sustained"] = samples = []
    while time.perf_counter() < end:
        samples.append({**decoder.rate(0, 512, 1), "gpu": gpu_state()})
        say(f"{samples[-1]}")
