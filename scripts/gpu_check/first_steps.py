"""Steps of stage 0, and what the CPU says of each. Values of a step that are False are faults."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu_rig import digest as steps_digest
from harness import nrmse

from gpu_check.common import Report, backend_of, digest, fill, gpu_state, load_cpu, logits_digest, on_gpu, say
from gpu_check.drafts import Fixed, dial, start_anew
from gpu_check.files import model_file
from gpu_check.rehearsal import open_gpu, sized
from gpu_check.settings import setting
from gpu_check.tiers import EXPERTS, moving, rig
from gpu_check.wanted import Compute, Wanted
from strata.backends.cuda import compile as compiler
from strata.bench.probe import Probe
from strata.engine import Engine, SamplingParams, gpu_experts
from strata.engine.load import LoadedModel

KINDS = {"dense": "dense-1.gguf", "delta rule": "delta-2.gguf", "attention": "attention-1.gguf"}
CELLS = sized(("f32", "f16", "k8v4", "q4"), ("f16", "q4"))
SHORT, ROWS = sized((1, 1, 3, 13), (1, 3)), sized((1, 1, 1, 1, 2, 3, 7, 13, 30), (1, 2, 13))
FAR, FAR_CONTEXT, BUDGETS = sized((40000, 65536, (0, 32768, 20480)), (600, 2048, (0, 1024)))
RESIDENCIES, SHARES = sized((0.05, 0.5), (0.25,)), sized(("0", "1", "auto"), ("0", "1"))
PROMPT = sized(2048 + 64 + 9, 128 + 9)
CHUNKS = sized({1.0: (64, 512, 2048), 0.05: (512, 2048)}, {1.0: (128,), 0.05: (64,)})
SHARED = sized(256, 64)  # of a chunk that CPU workers take experts of
# NRMSE of the chunk form to the CPU's, in units of that between the CPU's own chunk and step forms: sums of the delta
# rule in another order turn some int8 values and choices of experts, which a gain of 8 carries on.
ALMOST = 1.5
_COLUMNS = 64  # of logits: every so many are kept
PLANTED = "planted-4.gguf"


def _tokens(path: Path, count: int) -> list[int]:
    """The planted cycle, or any tokens."""
    cycle = Path(f"{path}.cycle.npy")
    text = np.load(cycle) if cycle.exists() else np.arange(7, 1000, 11)
    return np.resize(text, count).tolist()


def _steps(loaded: LoadedModel, path: Path, rows: tuple[int, ...]) -> str:
    return steps_digest(Engine(loaded), _tokens(path, 64), rows)


def _answers(loaded: LoadedModel, count: int = 5, tokens: int = sized(12, 4)) -> list[list[int]]:
    """Sampled tokens of some requests at once, with and without penalties."""
    engine = Engine(loaded)
    made = [
        engine.add(
            [5 + i, 9, 11 + 3 * i],
            SamplingParams(
                max_tokens=tokens,
                temperature=0.4 * i,
                seed=i,
                ignore_eos=True,
                repetition_penalty=1.0 + i % 2 / 10,
            ),
        )
        for i in range(count)
    ]
    while any(r.finish_reason is None for r in made):
        engine.step()
    return [r.output_token_ids for r in made]


def _far(loaded: LoadedModel) -> str:
    """Hash of the logits of steps of two sequences after pseudo-random cells."""
    probe, seen = Probe(loaded, 2), []
    fill(loaded, FAR)
    loaded.runner.watch = lambda sequences, positions, logits: seen.append(np.array(logits))
    for i in range(3):
        probe.step(FAR + i)
    loaded.runner.watch = None
    return digest(np.concatenate(seen))


def _all_logits(loaded: LoadedModel, path: Path) -> np.ndarray:
    """Of a prompt, f32 [tokens, vocabulary]."""
    return np.concatenate(list(Engine(loaded).logits(_tokens(path, PROMPT))))


_FAR_OPTIONS = {"kv": "int8", "max_model_len": FAR_CONTEXT, "max_num_seqs": 2}
_LOGITS = {"kv": "int8", "max_model_len": PROMPT + 64}


def _cpu_prompt(path: Path, prefill: int = sized(512, 64)) -> list[list[float]]:
    """Some of the logits in the chunk form."""
    loaded = load_cpu(path, **{**_LOGITS, "prefill": str(prefill)})
    return _all_logits(loaded, path)[::_COLUMNS, ::_COLUMNS].tolist()


WANTED: dict[str, tuple[str, Compute]] = {
    **{
        kind: (file, lambda path: _steps(load_cpu(path, kv="int8", max_model_len=192), path, SHORT))
        for kind, file in KINDS.items()
    },
    **{
        kv: (
            KINDS["attention"],
            lambda path, kv=kv: logits_digest(load_cpu(path, kv=kv, max_model_len=192), _tokens(path, 6)),
        )
        for kv in CELLS
    },
    "steps": (PLANTED, lambda path: _steps(load_cpu(path, max_model_len=192), path, ROWS)),
    "answers": (PLANTED, lambda path: _answers(load_cpu(path, max_model_len=192, max_num_seqs=8))),
    "far": (PLANTED, lambda path: _far(load_cpu(path, **_FAR_OPTIONS))),
    "prompt": (PLANTED, _cpu_prompt),
    "prompt in steps": (PLANTED, lambda path: _cpu_prompt(path, prefill=0)),
}


def _machine(wanted: Wanted) -> Report:
    begin = time.perf_counter()
    backend = open_gpu(0)
    opened, properties = time.perf_counter() - begin, backend.driver.properties
    found = {"open_s": round(opened, 2), "gpu": gpu_state(), "arch": properties.arch, "l2": properties.l2}
    found |= {"multiprocessors": properties.multiprocessors, "free": backend.driver.free_memory()}
    found["nvrtc"] = ".".join(map(str, compiler.version()))
    backend.close()
    return found


def _kind(kind: str) -> Callable[[Wanted], Report]:
    def step(wanted: Wanted) -> Report:
        path = model_file(KINDS[kind])
        with on_gpu(path, kv="int8", max_model_len=192) as loaded:
            return {"equal": _steps(loaded, path, SHORT) == wanted[kind]}

    return step


def _cells(wanted: Wanted) -> Report:
    path, found = model_file(KINDS["attention"]), {}
    for kv in CELLS:
        with on_gpu(path, kv=kv, max_model_len=192) as loaded:
            found[kv] = logits_digest(loaded, _tokens(path, 6)) == wanted[kv]
    return found


def _resident(wanted: Wanted) -> Report:
    """All buckets, sampled answers with penalties, and that answers take no memory."""
    path = model_file(PLANTED)
    with on_gpu(path, max_model_len=192, max_num_seqs=8) as loaded:
        found: Report = {"steps": _steps(loaded, path, ROWS) == wanted["steps"]}
        found["answers"] = _answers(loaded) == wanted["answers"]
        free = backend_of(loaded).driver.free_memory()
        found["again"] = _answers(loaded) == wanted["answers"]
        found["takes no memory"] = backend_of(loaded).driver.free_memory() == free
    return found


def _budgets(wanted: Wanted) -> Report:
    """Keys and values beyond their budget."""
    path, found = model_file(PLANTED), {}
    for budget in BUDGETS:
        with on_gpu(path, **_FAR_OPTIONS, kv_resident=budget) as loaded:
            found[f"{budget or 'all'} cells"] = _far(loaded) == wanted["far"]
    return found


def _tiers(residency: float) -> Callable[[Wanted], Report]:
    def step(wanted: Wanted) -> Report:
        path, found = model_file(PLANTED), {}
        for share in SHARES:
            with rig(path, residency, share) as r:
                moved = moving(r, wanted["steps"], ROWS)
            found[f"share {share}"] = all(value is not False for value in moved.values())
            say(f"residency {residency}, CPU share {share}: {moved}")
        return found

    return step


def _drafts(wanted: Wanted) -> Report:
    """Answers with drafts that are right now and then, of several lengths, and without."""
    path, found = model_file(PLANTED), {}
    options = {"max_model_len": 192, "max_num_seqs": 8, "mtp": "on", "lookup": "off"}
    with on_gpu(path, **options) as loaded:
        engine = Engine(loaded)
        for count in sized((0, 1, 3, 7), (0, 3)):
            # Where none is wrong, drafts are verified before the host has them.
            for tamper in (dial(75), None) if count else (None,):
                fresh = start_anew(engine, Fixed(count))
                fresh.tamper, name = tamper, f"{count} drafts{', some wrong' if tamper else ''}"
                found[name] = _answers(loaded) == wanted["answers"]
                found[f"{name}: kept"] = round(fresh.counts.mean_accepted, 2)
    return found


def _chunks(wanted: Wanted) -> Report:
    """One hash for any chunk and residency, near the CPU's."""
    path, hashes, found = model_file(PLANTED), {}, {}
    want = np.array(wanted["prompt"])
    noise = found["CPU's forms: NRMSE"] = round(nrmse(np.array(wanted["prompt in steps"]), want), 7)
    for residency, sizes in CHUNKS.items():
        cache = "auto" if residency == 1.0 else str(round(residency * 4 * EXPERTS))
        for size in sizes:
            with on_gpu(path, **_LOGITS, prefill=str(size), expert_cache=cache) as loaded:
                rows = _all_logits(loaded, path)
            hashes[f"{residency} {size}"] = digest(rows)
            error = found[f"{residency} {size}: NRMSE"] = round(nrmse(rows[::_COLUMNS, ::_COLUMNS], want), 7)
            found[f"{residency} {size}: near the CPU's"] = error < ALMOST * noise
    return found | {"one hash": len(set(hashes.values())) == 1, "hashes": hashes}


def _shared(wanted: Wanted) -> Report:
    """Chunks of which CPU workers take experts, which no GPU has run yet: one hash at any share."""
    path, hashes = model_file(PLANTED), {}
    options = {"prefill": str(SHARED), "expert_cache": str(round(0.05 * 4 * EXPERTS)), "cpu_share": "0.5"}
    with on_gpu(path, **_LOGITS, **options) as loaded:
        tier = backend_of(loaded).tier
        assert tier is not None and tier.prompts is not None and tier.prompts.share is not None
        for share in sized((0.0, 0.5, 1.0), (0.0, 0.5)):
            tier.prompts.share.device.set_share(share)
            hashes[f"{share:g}"] = digest(_all_logits(loaded, path))
        computed = tier.prompts.counts["prompt_cpu_experts"]
    one = len(set(hashes.values())) == 1
    return {"one hash": one, "hashes": hashes, "experts by the CPU": computed, "some": computed > 0}


def _guesses(wanted: Wanted) -> Report:
    """Experts fetched for the next layer by a branch of the graph, which no GPU has run yet."""
    with setting(gpu_experts, "AHEAD", 4), rig(model_file(PLANTED), RESIDENCIES[0], "auto") as r:
        found = moving(r, wanted["steps"], ROWS)
        return found | {"guesses": r.counts()["prefetches"]}


STEPS: dict[str, Callable[[Wanted], Report]] = {
    "machine": _machine,
    **{f"{kind} layer": _kind(kind) for kind in KINDS},
    "cells": _cells,
    "4 layers": _resident,
    "chunks": _chunks,
    **{f"tiers at {residency:.0%}": _tiers(residency) for residency in RESIDENCIES},
    "budgets of cells": _budgets,
    "drafts": _drafts,
    "shared chunks": _shared,
    "guesses ahead": _guesses,
}


def write_wanted() -> None:
    """Computes everything that is not known yet."""
    wanted: Any = Wanted(WANTED)
    for name in WANTED:
        wanted[name]
