"""Stage 4: the full-size planted model, everything resident: rates at several contexts, 16 tokens against the CPU."""

import numpy as np

from gpu_check.common import Decoder, Report, fill, gpu_state, load_cpu, logits_digest, on_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from strata.engine.load import LoadedModel

CONTEXT, DEPTHS = sized((262144, (4096, 32768, 131072, 245760)), (2048, (128, 1024)))
TOKENS = 16


def run(report: Report) -> None:
    path = model_file("planted.gguf")
    cycle = np.load(f"{path}.cycle.npy").tolist()[: sized(TOKENS, 4)]
    with on_gpu(path, kv="int8", max_model_len=CONTEXT) as loaded:
        report["weights"] = loaded.weight_bytes_per_token
        report["gpu_hash"] = logits_digest(loaded, cycle)
        _rates(report, loaded)
    report["gpu"] = gpu_state()
    report["cpu_hash"] = logits_digest(load_cpu(path, kv="int8", max_model_len=1024), cycle)
    report["equal"] = report["cpu_hash"] == report["gpu_hash"]
    say(f"{len(cycle)} tokens equal to the CPU's: {report['equal']}")


def _rates(report: Report, loaded: LoadedModel) -> None:
    decoder = Decoder(loaded)
    report["0"] = decoder.rate(0, 64)
    report["0"] |= decoder.parts_us(0)
    say(f"empty context: {report['0']}")
    for cells in DEPTHS:
        fill(loaded, cells)
        report[str(cells)] = decoder.rate(cells, 32, 3)
        report[str(cells)] |= decoder.parts_us(cells)
        say(f"{cells}: {report[str(cells)]}")
    report["timeline"] = decoder.table()
    for line in report["timeline"]["kernels"][:40]:
        say(f"  {line}")
