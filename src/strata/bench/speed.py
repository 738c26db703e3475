"""Prompt and generation speed, apart, with the memory traffic that bounds the second."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from strata.engine import Engine, SamplingParams
from strata.errors import ContextLengthError

WARM_UP_TOKENS = 16
PROMPT_SEED = 20


@dataclass(frozen=True, slots=True)
class Workload:
    """A random prompt of `prompt_len` tokens, then `gen_len` more that no end-of-text cuts short, `rounds` times."""

    prompt_len: int
    gen_len: int
    rounds: int

    @property
    def num_tokens(self) -> int:
        """Context that one round needs."""
        return self.prompt_len + self.gen_len


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second over the rounds; spread is (most - least) / median."""

    median: float
    spread: float

    @classmethod
    def of(cls, rates: list[float]) -> Self:
        """Summary of one rate per round."""
        median = statistics.median(rates)
        return cls(median, (max(rates) - min(rates)) / median)


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Speeds, and the bytes that one generated token reads at the run's mean context, beside what the machine can."""

    workload: Workload
    prompt: Rate
    generation: Rate
    weight_bytes_per_token: int
    kv_bytes_per_token: int
    read_bandwidth: float  # bytes per second, measured

    @property
    def bytes_per_token(self) -> int:
        """Every weight once, and the keys and values of the context."""
        return self.weight_bytes_per_token + self.kv_bytes_per_token

    @property
    def bandwidth_share(self) -> float:
        """Bytes that generation read per second, as a share of what the machine can read."""
        return self.generation.median * self.bytes_per_token / self.read_bandwidth


def measure_speed(
    engine: Engine, workload: Workload, read_bandwidth: float, tell: Callable[[str], None]
) -> SpeedReport:
    """Run a warm-up (the prompt and a few tokens), then the workload; `tell` gets a line per round.

    ContextLengthError when a round does not fit the context.
    """
    if workload.num_tokens > engine.max_model_len:
        raise ContextLengthError(
            f"{workload.prompt_len} + {workload.gen_len} tokens do not fit a context of {engine.max_model_len}"
        )
    vocab_size = engine.model_config.vocab_size
    prompt = np.random.default_rng(PROMPT_SEED).integers(0, vocab_size, workload.prompt_len).tolist()
    _round(engine, prompt, min(workload.gen_len, WARM_UP_TOKENS))
    rounds = []
    for index in range(workload.rounds):
        rounds.append(_round(engine, prompt, workload.gen_len))
        prompt_tps, generation_tps = rounds[-1]
        tell(f"round {index + 1}: prompt {prompt_tps:.1f} tok/s, generation {generation_tps:.1f} tok/s")
    return SpeedReport(
        workload,
        Rate.of([prompt_tps for prompt_tps, _ in rounds]),
        Rate.of([generation_tps for _, generation_tps in rounds]),
        engine.weight_bytes_per_token,
        engine.kv_bytes_per_cell * (workload.prompt_len + workload.gen_len // 2),
        read_bandwidth,
    )


def _round(engine: Engine, prompt: list[int], gen_len: int) -> tuple[float, float]:
    params = SamplingParams(temperature=0.0, max_tokens=gen_len, ignore_eos=True)
    engine.forget()  # the round before read the same prompt
    for _ in engine.generate(prompt, params):
        pass
    stats = engine.stats
    return stats.prompt_tokens / stats.prompt_seconds, stats.generated_tokens / stats.generation_seconds
