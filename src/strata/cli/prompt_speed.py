"""`strata benchmark --prompts`: first tokens of prompts of several lengths, and where a chunk's time goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import UsageError
from strata.ops import PAGE_CELLS

if TYPE_CHECKING:
    from strata.bench.prompts import KernelTime, PromptTime
    from strata.config import EngineOptions
    from strata.engine import Engine

_MOST = 16_000_000
_TEXT = 1 << 20  # tokens that prompts are cut from
_FIT_FROM = 8192  # tokens: shorter prompts are not on the line
_KERNELS = 24  # lines of a timeline


def lengths_of(text: str) -> list[int]:
    """Whole numbers between commas, at least 1 and less than _MOST; UsageError for anything else."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1 or max(found) >= _MOST:
        raise UsageError(
            f"--prompts is {text}; it must be numbers of tokens from 1 to {_MOST - 1:,} between commas"
        )
    return found


def prompt_benchmark(
    model: Path, options: "EngineOptions", lengths: list[int], rounds: int, timeline: bool
) -> Iterator[str]:
    """Lines of the report, each as soon as it is known."""
    from strata.bench.prompts import PromptProbe, fit, text_of
    from strata.engine import Engine

    engine = Engine.load(model, options)
    if timeline:
        _check_timeline(engine, max(lengths))
    text = text_of(model, engine.model_config.vocab_size, _TEXT)
    probe, times = PromptProbe(engine, text), []
    probe.warm_up()
    for tokens in lengths:
        times.append(probe.first_token(tokens, rounds))
        yield _line(times[-1])
    long = [t for t in times if t.tokens >= _FIT_FROM]
    if len({t.tokens for t in long}) > 1:
        line = fit(long)
        yield f"fit         {line.fixed:9.3f} s fixed, then {line.tps:.0f} tok/s"
    if timeline:
        yield from _timeline(engine, times)


def _check_timeline(engine: "Engine", longest: int) -> None:
    """UsageError where no chunk's nodes could be timed."""
    chunks = engine._runner.programs.chunks
    if not chunks or longest < PAGE_CELLS:
        raise UsageError(
            f"--timeline needs prompts that are read in chunks: --prefill, and {PAGE_CELLS} tokens or more"
        )
    if not hasattr(chunks[0].replay, "timeline"):
        raise UsageError("--timeline needs a GPU: the CPU has one program, not nodes")


def _line(time: "PromptTime") -> str:
    sent = f", {time.link_bytes / 1e9:.2f} GB sent" if time.link_bytes else ""
    sent += f", {time.cpu_experts} experts by the CPU" if time.cpu_experts else ""
    return f"prompt      {time.tps:9.1f} tok/s, first token of {time.tokens} after {time.seconds:.3f} s{sent}"


def _timeline(engine: "Engine", times: list["PromptTime"]) -> list[str]:
    """Kernels of one chunk, and the floor: operations at the rate of the fastest product."""
    from strata.bench.prompts import ChunkTimeline, text_of

    widest = max(lowered.program.bucket for lowered in engine._runner.programs.chunks)
    rows = min(widest, max(t.tokens for t in times) // PAGE_CELLS * PAGE_CELLS)
    chunk = ChunkTimeline(engine, rows)
    kernels = chunk.measure(text_of(Path(engine.model_file.path), engine.model_config.vocab_size, rows))
    total, work = sum(k.us for k in kernels), sum(k.operations for k in kernels)
    best = max(k.rate for k in kernels)
    floor = 1e6 * work / best if best else 0.0
    head = f"chunk       {total / 1e3:9.2f} ms of {rows} tokens, node by node; "
    head += f"floor {floor / 1e3:.2f} ms at {best / 1e12:.0f} TOP/s, its fastest product's rate"
    return [head, *(_kernel(k) for k in kernels[:_KERNELS])]


def _kernel(k: "KernelTime") -> str:
    rate = f"{k.rate / 1e12:7.1f} TOP/s" if k.operations else " " * 13
    return f"{k.us / 1e3:9.2f} ms {k.count:5d} x {k.us / k.count:9.1f} us {rate}  {k.name}"
