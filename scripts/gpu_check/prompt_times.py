"""Stage 15: prompts. Chunks of any size, at any residency, have one hash on 8 layers; first tokens of the full-size
model with everything in the GPU's memory and at 24 GiB, a long prompt beside two answers, the ends of the context."""

from typing import Any

import numpy as np

from gpu_check.common import Report, digest, load_gpu, say, synth
from strata.bench.prompts import ChunkTimeline, PromptProbe, fit, read_beside, text_of
from strata.engine import Engine, SamplingParams
from strata.errors import ContextLengthError

SIZES = (64, 512, 2048, 8192, 12288)
LENGTHS = (64, 512, 2048, 8192, 16384, 32768, 65536, 131072, 245760)
CONTEXT = 262144
EXPERTS = 8 * 512


def run(report: Report) -> None:
    planted = synth("planted-8.gguf", "planted", "--layers", "8", "--gain", "half", "--no-draft")
    report["hashes"] = _hashes(planted)
    say(f"hashes: {report['hashes']}")
    full = synth("planted.gguf", "planted")
    report["resident"] = _times(full, LENGTHS[:6], timeline=True, max_model_len=65536 + 64)
    report["24 GiB"] = _times(full, LENGTHS, vram_limit_gib=24.0, max_model_len=CONTEXT)
    report["beside"] = _beside(full)
    report["ends"] = _ends(full)


def _hashes(path: Any) -> dict[str, Any]:
    """SHA-256 of 12,300 tokens' last logits by chunk and residency."""
    text, found = np.load(f"{path}.cycle.npy"), {}
    for residency in (1.0, 0.05):
        cache = "auto" if residency == 1.0 else str(round(residency * EXPERTS))
        for size in SIZES:
            engine = Engine(load_gpu(path, prefill=str(size), expert_cache=cache, max_model_len=12416))
            rows: list[np.ndarray] = []
            engine._runner.watch = lambda s, p, logits, rows=rows: rows.append(np.array(logits))
            for _ in engine.generate(np.resize(text, 12300).tolist(), _greedy(4)):
                pass
            found[f"{residency} {size}"] = digest(np.concatenate(rows))
    return found | {"equal": len(set(found.values())) == 1}


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def _times(path: Any, lengths: tuple[int, ...], timeline: bool = False, **options: Any) -> dict[str, Any]:
    loaded = load_gpu(path, kv="int8", prefill="auto", **options)
    loaded.runner.programs.prepare()
    engine, found = Engine(loaded), {"prefill": loaded.placement.choice.prefill}
    text = text_of(path, engine.model_config.vocab_size, 1 << 20)
    probe, times = PromptProbe(engine, text), []
    probe.warm_up()
    for tokens in lengths:
        times.append(probe.first_token(tokens))
        found[str(tokens)] = [times[-1].seconds, times[-1].tps, times[-1].link_bytes]
        say(f"{tokens}: {found[str(tokens)]}")
    line = fit([t for t in times if 16384 <= t.tokens <= 65536])
    found |= {"fixed": line.fixed, "tps": line.tps, "free": loaded.runner.backend.driver.free_memory()}
    if timeline:
        kernels = ChunkTimeline(engine, 8192).measure(text)
        found["timeline"] = [[k.name, k.count, k.us, k.rate] for k in kernels]
    return found


def _beside(path: Any) -> dict[str, Any]:
    loaded = load_gpu(
        path, kv="int8", prefill="auto", vram_limit_gib=24.0, max_model_len=66048, max_num_seqs=3
    )
    loaded.runner.programs.prepare()
    engine = Engine(loaded)
    text = text_of(path, engine.model_config.vocab_size, 1 << 20)
    probe = PromptProbe(engine, text)
    probe.warm_up()
    solo = probe.first_token(65000)
    starts = [text[at : at + 8].tolist() for at in (700000, 800000)]
    found = read_beside(engine, text[200000:265000].tolist(), starts)
    return {"solo": solo.tps, "share": found.prompt.tps / solo.tps, "answers": found.answers}


def _ends(path: Any) -> dict[str, Any]:
    """Prompts that nearly fill, fill and exceed the context, and memory that was free at the end."""
    loaded = load_gpu(path, kv="int8", prefill="auto", vram_limit_gib=24.0, max_model_len=CONTEXT)
    engine, found = Engine(loaded), {}
    text = text_of(path, engine.model_config.vocab_size, 1 << 20)
    for tokens in (CONTEXT - 1, CONTEXT):
        engine.forget()
        found[str(tokens)] = len(list(engine.generate(text[:tokens].tolist(), _greedy(2))))
    try:
        engine.add(text[: CONTEXT + 1].tolist(), _greedy(1))
    except ContextLengthError as error:
        found[str(CONTEXT + 1)] = str(error)
    return found
