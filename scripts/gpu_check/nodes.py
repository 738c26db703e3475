"""Stage 7: what each node of a step adds to the chain: 8 layers at full width, graphs of the first nodes; one row, then
two, four and eight beside it."""

import statistics
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpu_check import rows
from gpu_check.common import (
    Decoder,
    Report,
    backend_of,
    by_kernel,
    fill,
    gpu_state,
    in_graph,
    on_gpu,
    prefix_times,
    same_logits,
    say,
)
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from gpu_check.settings import setting
from strata.backends.cuda import ahead, lower_products
from strata.backends.cuda.driver import Launch

TOKENS = sized(24, 4)
CONTEXT, DEPTHS = sized((262144, (4096, 32768, 245760)), (2048, (1024,)))


def run(report: Report) -> None:
    path = model_file("planted-8.gguf")
    cycle = np.load(f"{path}.cycle.npy").tolist()
    report["equal"] = same_logits(path, cycle[:TOKENS], kv="int8", max_model_len=1024)
    say(f"{TOKENS} tokens: {report['equal']}")
    with on_gpu(path, kv="int8", max_model_len=CONTEXT) as loaded:
        report["rows"] = rows.side_by_side(loaded, cycle)
        _measure(report, Decoder(loaded))


def _measure(report: Report, decoder: Decoder) -> None:
    report["rate"] = decoder.rate(0, 32)
    say(f"8 layers: {report['rate']}")
    report["variants"] = _variants(decoder)
    report["prefixes"] = _prefixes(decoder)
    for line in report["prefixes"]["kernels"]:
        say(f"  {line}")
    report["alone"] = decoder.table()["kernels"][:24]
    for cells in DEPTHS:
        fill(decoder.loaded, cells)
        decoder.step(cells)
        found = _prefixes(decoder)
        report[f"prefixes {cells}"] = [
            k for k in found["kernels"] if "attention" in k["kernel"] or "select" in k["kernel"]
        ]
        say(f"{cells}: {found['step_us']} us, {report[f'prefixes {cells}']}")
    report["gpu"] = gpu_state()


_MB = 1 << 20
VARIANTS: dict[str, list[tuple[Any, str, Any]]] = {
    "as it is": [],
    "nothing asked for early": [(ahead, "PLAN", None)],
    "window 10, 5 MiB a node": [(ahead, "PLAN", ahead.Plan(10 * _MB, 5 * _MB))],
    "window 20, 5 MiB a node": [(ahead, "PLAN", ahead.Plan(20 * _MB, 5 * _MB))],
    "window 20, 20 MiB a node": [(ahead, "PLAN", ahead.Plan(20 * _MB, 20 * _MB))],
    "window 32, 16 MiB a node": [(ahead, "PLAN", ahead.Plan(32 * _MB, 16 * _MB))],
    "float rows to registers": [(lower_products, "FLOAT_STAGED", False)],
}


def _variants(decoder: Decoder) -> dict[str, Any]:
    """Microseconds of a step of other lowerings of the same program, and of their nodes by kernel."""
    loaded = decoder.loaded
    backend, program = backend_of(loaded), loaded.runner.programs.of("step", 1).program
    found: dict[str, Any] = {}
    for name, settings in VARIANTS.items():
        with ExitStack() as changed:
            for module, key, value in settings:
                changed.enter_context(setting(module, key, value))
            replay = backend.lower(program)
        step = in_graph(backend.driver, replay.launches)
        found[name] = {"step_us": round(step, 1), "kernels": by_kernel(backend.driver, replay)}
        most = [
            (k["kernel"].split()[0], k["grid"][0], k["count"], k["each"]) for k in found[name]["kernels"][:8]
        ]
        say(f"{name}: {step:.1f} us, {most}")
    return found


def _prefixes(decoder: Decoder) -> dict[str, Any]:
    """Microseconds that each node adds to the chain, by kernel."""
    launches = decoder.replay.launches
    nodes: list[Launch] = launches[: sized(len(launches), 8)]
    each = prefix_times(backend_of(decoder.loaded).driver, nodes)
    by: dict[str, list[float]] = defaultdict(list)
    for node, us in zip(nodes, each, strict=True):
        by[f"{node.kernel.entry} {node.grid[0]}x{node.grid[1]}"].append(us)
    table = sorted(by.items(), key=lambda x: -sum(x[1]))
    return {
        "nodes": len(nodes),
        "step_us": round(sum(each), 1),
        "each": [round(us, 2) for us in each],
        "kernels": [
            {"kernel": k, "count": len(v), "us": round(sum(v), 1), "each": round(statistics.median(v), 2)}
            for k, v in table
        ],
    }
