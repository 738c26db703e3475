"""One line a request, for people; the same as fields where the log is JSON."""

from collections.abc import Sequence
from typing import Any

from strata import log
from strata.server.generation import Generation

logger = log.logger("strata.requests")


def log_answer(path: str, request_id: str, generations: Sequence[Generation]) -> None:
    """A request that was answered, wholly or until it broke."""
    first, last = generations[0], max(generations, key=lambda g: g.timings.finished)
    t = first.timings
    fields: dict[str, Any] = {
        "path": path,
        "request_id": request_id,
        "prompt_tokens": first.num_prompt_tokens,
        "cached_tokens": first.num_cached_tokens,
        "generated_tokens": sum(g.reader.num_tokens for g in generations),
        "queue_s": round(t.queue_seconds, 3),
        "first_token_s": round(t.first_token - t.arrived, 3) if t.first_token else None,
        "tokens_per_s": round(_rate(first), 1),
        "total_s": round(last.timings.finished - t.arrived, 3),
        "finish_reason": "+".join(dict.fromkeys(g.finish_reason for g in generations)),
        "client": first.call.wishes.client,
    }
    logger.info(_line(fields, len(generations)), extra={"fields": fields})


def log_refusal(path: str, status: int, message: str) -> None:
    """A request that was not served."""
    fields = {"path": path, "status": status, "error": message}
    logger.info(f"{path} {status}: {message}", extra={"fields": fields})


def _line(f: dict[str, Any], answers: int) -> str:
    cached = f", {f['cached_tokens']:,} cached" if f["cached_tokens"] else ""
    many = f" in {answers} answers" if answers > 1 else ""
    first = "no token" if f["first_token_s"] is None else f"first in {f['first_token_s']:.2f} s"
    waited = f", {f['queue_s']:.2f} s queued" if f["queue_s"] >= 0.01 else ""
    return (
        f"{f['path']} {f['request_id']}: {f['prompt_tokens']:,} prompt tokens{cached}; "
        f"{f['generated_tokens']:,} generated{many} at {f['tokens_per_s']:.1f}/s; {first}{waited}, "
        f"{f['total_s']:.2f} s in all; {f['finish_reason']}"
    )


def _rate(generation: Generation) -> float:
    seconds = generation.timings.generation_seconds
    return (generation.reader.num_tokens - 1) / seconds if seconds > 0 else 0.0
