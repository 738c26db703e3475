"""Stage 4: the full-size planted model, everything resident: rates at several contexts, 16 tokens against the CPU."""

import time

import numpy as np

from gpu_check.common import Decoder, Report, digest, fill, gpu_state, load_gpu, say, synth
from strata.config import EngineOptions
from strata.engine import Engine
from strata.engine.load import load_model


def run(report: Report) -> None:
    path = synth("planted.gguf", "planted")
    begin = time.perf_counter()
    loaded = load_gpu(path, kv="int8", max_model_len=262144)
    report["load_s"] = round(time.perf_counter() - begin, 1)
    report["weights"] = loaded.weight_bytes_per_token
    cycle = np.load(f"{path}.cycle.npy").tolist()[:16]
    rows = np.concatenate(list(Engine(loaded).logits(cycle)))
    report["gpu_hash"] = digest(rows)
    decoder = Decoder(loaded)
    report["0"] = decoder.rate(0, 64)
    say(f"empty context: {report['0']}")
    report["timeline"] = decoder.table()
    for line in report["timeline"]["kernels"][:40]:
        say(f"  {line}")
    for cells in (4096, 32768, 131072, 245760):
        fill(loaded, cells)
        report[str(cells)] = decoder.rate(cells, 32, 3)
        say(f"{cells}: {report[str(cells)]}")
    report["timeline 245760"] = decoder.table()["kernels"][:12]
    report["gpu"] = gpu_state()
    cpu = load_model(
        path, EngineOptions(device="cpu", prefill=0, ram_limit_gib=120, kv="int8", max_model_len=1024)
    )
    report["cpu_hash"] = digest(np.concatenate(list(Engine(cpu).logits(cycle))))
    report["equal"] = report["cpu_hash"] == report["gpu_hash"]
    say(f"16 tokens equal to the CPU's: {report['equal']}")
