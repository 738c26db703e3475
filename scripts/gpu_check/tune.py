"""Stage 6: what only a GPU can decide: threads of products, workers of attention, dependent launch."""

from dataclasses import replace
from typing import Any

from gpu_check.common import Decoder, Report, backend_of, by_kernel, fill, in_graph, on_gpu, say
from gpu_check.dense import CELLS, CONTEXT, KINDS
from gpu_check.files import model_file
from gpu_check.settings import setting
from strata.backends.cuda import lower_attention
from strata.engine.load import LoadedModel


def run(report: Report) -> None:
    for kind in KINDS:
        with on_gpu(model_file(f"dense-{kind}.gguf"), kv="int8", max_model_len=CONTEXT) as loaded:
            report[kind] = found = {}
            _tune(loaded, kind, found)


def _tune(loaded: LoadedModel, kind: str, found: Report) -> None:
    decoder, backend = Decoder(loaded), backend_of(loaded)
    decoder.step(0)
    program = loaded.runner.programs.of("step", 1).program
    found["linear"] = [k for k in by_kernel(backend.driver, decoder.replay) if "linear" in k["kernel"]]
    say(f"{kind}: {[(k['grid'][0], k['count'], k['each']) for k in found['linear']]}")
    nodes = backend.lower(program).launches
    found["step"] = round(in_graph(backend.driver, nodes), 1)
    plain = in_graph(backend.driver, [replace(n, dependent=False) for n in nodes])
    found["without dependent launch"] = round(plain, 1)
    say(f"{kind}: step {found['step']} us, without dependent launch {plain:.1f} us")
    if kind == "Q4_K":
        fill(loaded, CELLS)
        decoder.step(CELLS)
        found["attention"] = _attention(backend, program)


def _attention(backend: Any, program: Any) -> Report:
    found: Report = {}
    for workers in (1, 2, 3, 4, 6):
        with setting(lower_attention, "_WORKERS", workers):
            nodes = [n for n in backend.lower(program).launches if n.kernel.entry == "attention"]
        found[str(workers)] = round(in_graph(backend.driver, nodes) / len(nodes), 2)
        say(f"attention after {CELLS:,}, {workers} thread blocks a multiprocessor: {found[str(workers)]} us")
    return found
