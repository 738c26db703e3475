"""Whole-model rates beside llama.cpp's, interleaved in one process: a prompt of 512 tokens, then 128 generated.

usage: models.py MODEL.gguf ... [--rounds 5] [--threads 2]     (needs: pip install llama-cpp-python)
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams

PROMPT, GENERATED = 512, 128


class Ours:
    """The engine, as `strata benchmark` runs it."""

    name = "strata"

    def __init__(self, path, threads):
        self._engine = Engine.load(
            path, EngineOptions(threads=threads, max_model_len=PROMPT + GENERATED + 64)
        )
        self.vocab = self._engine.model_config.vocab_size

    def run(self, tokens):
        """(prompt tok/s, generation tok/s)."""
        for _ in self._engine.generate(tokens, SamplingParams(max_tokens=GENERATED, ignore_eos=True)):
            pass
        stats = self._engine.stats
        return (
            stats.prompt_tokens / stats.prompt_seconds,
            stats.generated_tokens / stats.generation_seconds,
        )


class LlamaCpp:
    """llama.cpp through its Python package: greedy, end-of-text ignored, f16 keys and values."""

    name = "llama.cpp"

    def __init__(self, path, threads):
        from llama_cpp import Llama

        self._model = Llama(
            str(path),
            n_ctx=PROMPT + GENERATED + 64,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def run(self, tokens):
        """(prompt tok/s, generation tok/s)."""
        model = self._model
        model.reset()
        started = time.perf_counter()
        model.eval(tokens)
        token = int(np.argmax(model.eval_logits[-1]) if model.eval_logits else model.sample(temp=0.0))
        middle = time.perf_counter()
        for _ in range(GENERATED - 1):
            model.eval([token])
            token = model.sample(temp=0.0)
        ended = time.perf_counter()
        return len(tokens) / (middle - started), (GENERATED - 1) / (ended - middle)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    for path in a.models:
        ours, theirs = Ours(path, a.threads), LlamaCpp(path, a.threads)
        tokens = np.random.default_rng(1).integers(100, min(ours.vocab, 30_000), PROMPT).tolist()
        rates = {e.name: [] for e in (ours, theirs)}
        for i in range(a.rounds + 1):
            for engine in (ours, theirs) if i % 2 else (theirs, ours):
                rate = engine.run(tokens)
                if i:  # the first round warms up
                    rates[engine.name].append(rate)
        print(f"{path.name}, {a.threads} threads, median (least to most) of {a.rounds}")
        for name, found in rates.items():
            columns = list(zip(*found, strict=True))
            text = [f"{statistics.median(c):8.1f} ({min(c):.1f} to {max(c):.1f})" for c in columns]
            print(f"  {name:10} prompt {text[0]}   generation {text[1]}")


if __name__ == "__main__":
    main()
