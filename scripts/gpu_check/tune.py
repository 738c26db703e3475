"""Stage 6: what only a GPU can decide: threads of products, workers of attention, dependent launch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpu_check.common import Decoder, Report, backend_of, by_kernel, fill, in_graph, load_gpu, say, synth
from strata.backends.cuda import lower_attention


@contextmanager
def setting(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def run(report: Report) -> None:
    for kind in ("Q4_K", "Q8_0", "F16"):
        loaded = load_gpu(
            synth(f"dense-{kind}.gguf", "dense", "--type", kind), kv="int8", max_model_len=32768
        )
        decoder = Decoder(loaded)
        decoder.step(0)
        backend = backend_of(loaded)
        program = loaded.runner.programs.of("step", 1).program
        found: Report = {}
        linear = [k for k in by_kernel(backend.driver, decoder.replay) if "linear" in k["kernel"]]
        found["linear"] = linear
        say(f"{kind}: {[(k['grid'][0], k['count'], k['each']) for k in linear]}")
        nodes = backend.lower(program).launches
        say(f"{kind}: step {in_graph(backend.driver, nodes):.1f} us")
        plain = in_graph(backend.driver, [replace(n, dependent=False) for n in nodes])
        found["without dependent launch"] = round(plain, 1)
        say(f"{kind}, without dependent launch: step {plain:.1f} us")
        if kind == "Q4_K":
            fill(loaded, 30000)
            decoder.step(30000)
            found["attention"] = _attention(backend, program)
        report[kind] = found


def _attention(backend: Any, program: Any) -> Report:
    found: Report = {}
    for workers in (1, 2, 3, 4, 6):
        with setting(lower_attention, "_WORKERS", workers):
            nodes = [n for n in backend.lower(program).launches if n.kernel.entry == "attention"]
        found[str(workers)] = round(in_graph(backend.driver, nodes) / len(nodes), 2)
        say(f"attention after 30,000, {workers} thread blocks a multiprocessor: {found[str(workers)]} us")
    return found
