"""Stage 3: a dense model of 2.4 B weights, at an empty context and after 30,000 tokens, with nodes by kind; prompts."""

from gpu_check.common import Decoder, Report, backend_of, by_kernel, fill, gpu_state, on_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from strata.backends.cuda.hot import missing
from strata.bench.prompts import PromptProbe, text_of
from strata.engine import Engine

HBM = 4.2e12  # bytes a second that a copy reaches on an H200
KINDS = sized(("Q4_K", "Q8_0", "F16"), ("Q4_K", "F16"))
CONTEXT, CELLS = sized((32768, 30000), (512, 300))
PROMPTS = sized((512, 2048), (64, 128))


def run(report: Report) -> None:
    for kind in KINDS:
        path = model_file(f"dense-{kind}.gguf")
        with on_gpu(path, kv="int8", max_model_len=CONTEXT, prefill=str(PROMPTS[-1])) as loaded:
            report[kind] = found = {}
            loaded.runner.programs.prepare()
            engine = Engine(loaded)
            probe = PromptProbe(engine, text_of(path, loaded.model.config.vocab_size, 1 << 16))
            probe.warm_up(8)
            for tokens in PROMPTS:
                probe.first_token(tokens)
                found[f"prompt {tokens}"] = round(probe.first_token(tokens, sized(5, 1)).tps)
            say(f"{kind}, prompts: {[found[f'prompt {tokens}'] for tokens in PROMPTS]} tok/s")
            engine.forget()
            found["weights"], found["cell"] = loaded.weight_bytes_per_token, loaded.kv_bytes_per_cell
            found["floor_ms"] = round(1e3 * loaded.weight_bytes_per_token / HBM, 3)
            decoder, driver = Decoder(loaded), backend_of(loaded).driver
            found["empty"] = decoder.rate(0, 64)
            found["parts"] = decoder.parts_us(0)
            say(f"{kind}: {found['empty']}, {len(decoder.replay.launches)} nodes, {found['parts']}")
            found["kernels"] = by_kernel(driver, decoder.replay)
            fill(loaded, CELLS)
            found[f"after {CELLS}"] = decoder.rate(CELLS, 64)
            found["parts after"] = decoder.parts_us(CELLS)
            say(f"{kind} after {CELLS:,}: {found[f'after {CELLS}']}, {found['parts after']}")
            found["kernels after"] = by_kernel(driver, decoder.replay)
            found["not in hot.txt"] = missing((k["kernel"], k["us"]) for k in found["kernels after"])
            found["gpu"], found["free"] = gpu_state(), driver.free_memory()
            for line in found["kernels after"]:
                say(f"  {line}")
