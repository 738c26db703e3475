"""Stage 5: minutes of decoding with clocks and power."""

import os
import time

from gpu_check.common import Decoder, Report, gpu_state, load_gpu, synth

MINUTES = float(os.environ.get("STRATA_CHECK_MINUTES", "2"))


def run(report: Report) -> None:
    loaded = load_gpu(synth("dense-Q4_K.gguf", "dense", "--type", "Q4_K"), kv="int8", max_model_len=32768)
    decoder, end = Decoder(loaded), time.perf_counter() + 60 * MINUTES
    samples = []
    while time.perf_counter() < end:
        samples.append({**decoder.rate(0, 512, 1), "gpu": gpu_state()})
    report["sustained"] = samples
