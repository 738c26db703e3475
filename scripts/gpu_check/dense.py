"""Stage 3: a dense model of 2.4 B weights, at an empty context and after 30,000 tokens, with nodes by kind."""

from gpu_check.common import Decoder, Report, backend_of, by_kernel, fill, gpu_state, load_gpu, say, synth
from strata.backends.cuda.hot import missing

HBM = 4.2e12  # bytes a second that a copy reaches on an H200
KINDS = ("Q4_K", "Q8_0", "F16")


def run(report: Report) -> None:
    for kind in KINDS:
        path = synth(f"dense-{kind}.gguf", "dense", "--type", kind)
        loaded = load_gpu(path, kv="int8", max_model_len=32768)
        decoder = Decoder(loaded)
        found: Report = {"weights": loaded.weight_bytes_per_token, "cell": loaded.kv_bytes_per_cell}
        found["floor_ms"] = round(1e3 * loaded.weight_bytes_per_token / HBM, 3)
        found["empty"] = decoder.rate(0, 64)
        driver = backend_of(loaded).driver
        found["nodes"] = len(decoder.replay.launches)
        found["kernels"] = by_kernel(driver, decoder.replay)
        found["not in hot.txt"] = missing((k["kernel"], k["us"]) for k in found["kernels"])
        fill(loaded, 30000)
        found["30000"] = decoder.rate(30000, 64)
        found["kernels 30000"] = by_kernel(driver, decoder.replay)[:4]
        found["gpu"] = gpu_state()
        found["free"] = driver.free_memory()
        report[kind] = found
        say(f"{kind}: {found['empty']}, after 30,000 {found['30000']}, {found['nodes']} nodes")
        for line in (*found["kernels"], *found["kernels 30000"]):
            say(f"  {line}")
