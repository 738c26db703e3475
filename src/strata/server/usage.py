"""What an answer cost: tokens in OpenAI's words, times in llama.cpp's."""

from collections.abc import Sequence
from typing import Any

from strata.server.generation import Generation


def usage(generations: Sequence[Generation], prompts: int | None = None) -> dict[str, Any]:
    """Token counts of a request; a prompt that several answers share counts once."""
    per_prompt = len(generations) // (prompts or 1)
    firsts = generations[::per_prompt]
    prompt = sum(g.num_prompt_tokens for g in firsts)
    completion = sum(g.reader.num_tokens for g in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(g.num_cached_tokens for g in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(g.reader.num_reasoning_tokens for g in generations)
        },
    }


def timings(generation: Generation) -> dict[str, Any]:
    """Counts, milliseconds and rates under the names that llama.cpp's server uses (its README, "timings")."""
    t, cached = generation.timings, generation.num_cached_tokens
    read, written = generation.num_prompt_tokens - cached, generation.reader.num_tokens
    # the first token comes of reading the prompt
    return {
        "cache_n": cached,
        **_rates("prompt", read, t.prompt_seconds),
        **_rates("predicted", written, t.generation_seconds, max(written - 1, 0)),
        "queue_ms": round(t.queue_seconds * 1e3, 3),
    }


def _rates(name: str, count: int, seconds: float, timed: int | None = None) -> dict[str, Any]:
    timed = count if timed is None else timed
    return {
        f"{name}_n": count,
        f"{name}_ms": round(seconds * 1e3, 3),
        f"{name}_per_token_ms": round(seconds * 1e3 / timed, 3) if timed else 0.0,
        f"{name}_per_second": round(timed / seconds, 3) if seconds > 0 else 0.0,
    }
