"""Stage 15: prompts. Chunks of any size, at any residency, have one hash on 8 layers; first tokens of the full-size
model with everything in the GPU's memory and at 24 GiB, a long prompt beside two answers, the ends of the context."""

from dataclasses import astuple
from itertools import product
from typing import Any

import numpy as np

from gpu_check.common import SMALLER, Report, digest, memory, on_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from strata.bench.prompts import ChunkTimeline, PromptProbe, fit, read_beside, text_of
from strata.engine import Engine, SamplingParams
from strata.errors import ContextLengthError

CASES = sized(list(product((1.0, 0.05), (64, 512, 2048, 8192, 12288))), [(1.0, 128), (0.05, 64)])
TOKENS = sized(12300, 136)
SHORT = 2048  # tokens of prompts that are read three times
LENGTHS = sized((64, 512, 2048, 8192, 16384, 32768, 65536, 131072, 245760), (64, 128))
FITTED = sized((16384, 65536), (64, 128))  # lengths of the line through the times
CONTEXT = sized(262144, 256)
EXPERTS = sized(8 * 512, 4 * 16)
RESIDENT = sized(32768, 0)
NARROW, BESIDE = sized((64, 65000), (64, 64))
RUNNING = sized(128, 8)  # tokens of the answers beside which a prompt is read


def run(report: Report) -> None:
    full = model_file("planted.gguf")
    resident = {"max_model_len": sized(65536 + 64, 256)}
    for name, lengths, options in (
        ("24 GiB", LENGTHS[:6], {**SMALLER, "max_model_len": CONTEXT}),
        ("resident", LENGTHS[:6], resident),
    ):
        report[name] = {}
        report[name] = _times(report[name], full, lengths, options)
    report["beside"] = _beside(full)
    say(f"beside: {report['beside']}")
    report["deep"] = {}
    _times(report["deep"], full, LENGTHS[6:], {**SMALLER, "max_model_len": CONTEXT})
    report["ends"] = _ends(full)
    say(f"ends: {report['ends']}")
    report["hashes"] = _hashes(model_file("planted-8.gguf"))
    say(f"hashes: {report['hashes']}")


def _hashes(path: Any) -> dict[str, Any]:
    """SHA-256 of a prompt's last logits by chunk and residency."""
    text, found = np.resize(np.load(f"{path}.cycle.npy"), TOKENS).tolist(), {}
    for residency, size in CASES:
        cache = "auto" if residency == 1.0 else str(round(residency * EXPERTS))
        with on_gpu(path, prefill=str(size), expert_cache=cache, max_model_len=TOKENS + 116) as loaded:
            found[f"{residency} {size}"] = answer_digest(Engine(loaded), text)
    return found | {"equal": len(set(found.values())) == 1}


def answer_digest(engine: Engine, text: list[int]) -> str:
    """Of the logits of four tokens after a prompt."""
    rows: list[np.ndarray] = []
    engine._runner.watch = lambda sequences, positions, logits: rows.append(np.array(logits))
    for _ in engine.generate(text, greedy(4)):
        pass
    engine._runner.watch = None
    return digest(np.concatenate(rows))


def greedy(tokens: int) -> SamplingParams:
    """So many of the likeliest tokens, whatever they are."""
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def _times(
    found: dict[str, Any], path: Any, lengths: tuple[int, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """First tokens of prompts, a line through their times, and where a chunk's time goes."""
    with on_gpu(path, kv="int8", prefill="auto", **options) as loaded:
        loaded.runner.programs.prepare()
        engine, chunk = Engine(loaded), loaded.placement.choice.prefill
        found["prefill"] = chunk
        text = text_of(path, engine.model_config.vocab_size, 1 << 20)
        probe, times = PromptProbe(engine, text), []
        probe.warm_up(sized(256, 4))
        for tokens in lengths:
            times.append(probe.first_token(tokens, 3 if tokens <= SHORT else 1))
            found[str(tokens)] = [times[-1].seconds, times[-1].tps, times[-1].link_bytes]
            say(f"{tokens}: {found[str(tokens)]}")
        fitted = [t for t in times if FITTED[0] <= t.tokens <= FITTED[1]]
        if len(fitted) > 1:
            line = fit(fitted)
            found |= {"fixed": line.fixed, "tps": line.tps}
        found["free"] = loaded.runner.backend.driver.free_memory()
        engine.forget()
        for rows in sorted({NARROW, chunk}):
            kernels = ChunkTimeline(engine, rows).measure(text)
            found[f"timeline of {rows}"] = [[k.name, k.count, k.us, k.rate] for k in kernels]
            for k in kernels[:12]:
                say(f"  {rows} rows: {k.count} of {k.us:.0f} us, {k.rate / 1e12:.0f} TOPS: {k.name[-160:]}")
        return found


def _beside(path: Any) -> dict[str, Any]:
    options = {**SMALLER, "max_model_len": sized(66048, 256), "max_num_seqs": 3}
    with on_gpu(path, kv="int8", prefill="auto", **options) as loaded:
        loaded.runner.programs.prepare()
        engine = Engine(loaded)
        text = text_of(path, engine.model_config.vocab_size, 1 << 20)
        probe = PromptProbe(engine, text)
        probe.warm_up(sized(256, 4))
        solo = probe.first_token(BESIDE)
        starts = [text[at : at + 8].tolist() for at in (700000, 800000)]
        engine.forget()
        found = read_beside(engine, text[200000 : 200000 + BESIDE].tolist(), starts, RUNNING)
    told = {"solo": solo.tps, "share": found.prompt.tps / solo.tps, "answers": found.answers}
    return told | {"median": found.median_ms, "gaps": [astuple(gap) for gap in found.gaps]}


def _ends(path: Any) -> dict[str, Any]:
    """Prompts that nearly fill, fill and exceed the context."""
    options = {**SMALLER, "max_model_len": CONTEXT, "kv_resident": RESIDENT}
    with on_gpu(path, kv="int8", prefill="auto", **options) as loaded:
        engine, found = Engine(loaded), {}
        text = text_of(path, engine.model_config.vocab_size, 1 << 20)
        for tokens in (CONTEXT - 1, CONTEXT):
            engine.forget()
            found[str(tokens)] = len(list(engine.generate(text[:tokens].tolist(), greedy(2))))
        found["memory"] = memory(loaded)
        try:
            engine.add(text[: CONTEXT + 1].tolist(), greedy(1))
        except ContextLengthError as error:
            found[str(CONTEXT + 1)] = str(error)
        return found
