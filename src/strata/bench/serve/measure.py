"""A whole measurement: what was asked, its figures, and lines for people."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from strata.bench.serve.client import Target
from strata.bench.serve.load import run_load
from strata.bench.serve.report import Report
from strata.bench.serve.workload import Load, PromptMaker
from strata.errors import UsageError


def measure(target: Target, model: str, load: Load, tell: Callable[[str], None]) -> dict[str, Any]:
    """Fits prompts, runs the load; a report as plain data. UsageError where no request came to its end."""
    load.check()
    model = model or target.model()
    prompts = PromptMaker.fitted(target, model)
    samples = run_load(target, model, load, prompts, tell)
    report = Report(samples)
    errors = Counter(s.error for s in samples if s.error)
    if not report.good:
        raise UsageError(f"no request came to its end: {next(iter(errors))}")
    return {
        "settings": {"url": target.url, "api": target.api, "model": model, **asdict(load)},
        "figures": report.figures(),
        "errors": dict(errors),
        "windows": report.windows(),
        "timeline": report.timeline(),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The report for people."""
    f = found["figures"]
    told = [
        f"requests     {f['requests']}, {f['failed']} failed; {f['wall_s']:.2f} s",
        f"tokens       {_shown(f['prompt_tokens'])} prompt ({f['cached_tokens']} cached), {f['output_tokens']} output, "
        f"counted by {f['counted_by']}",
        f"aggregate    {f['aggregate_tps']:.1f} tok/s by the wall clock",
        f"decode       {f['decode_tps']:.1f} tok/s while answers came, {f['decode_share']:.1%} of the time",
    ]
    for name, key in (
        ("first token", "ttft_s"),
        ("gap", "itl_s"),
        ("per token", "tpot_s"),
        ("whole", "e2e_s"),
    ):
        if figures := f[key]:
            told.append(f"{name:12} " + ", ".join(f"{n} {v * 1e3:.1f} ms" for n, v in figures.items()))
    if against := found.get("against"):
        told += ["against the other run: " + ", ".join(f"{n} {_shown(v)}" for n, v in against.items())]
    return told


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)
