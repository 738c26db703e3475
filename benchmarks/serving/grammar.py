"""What a grammar costs: decode speed with a JSON schema's masks and without, interleaved, medians.

usage: grammar.py [--model FILE] [--rows N] [--tokens N] [--rounds N] [--threads N]
"""

import argparse
import json
import statistics
from pathlib import Path
from time import perf_counter

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams, TokenMask
from strata.text import Tokenizer
from strata.text.grammar import GrammarCompiler, TokenConstraint, json_grammar

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "kind": {"enum": ["person", "company", "place"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
MANY = {"type": "array", "items": PERSON, "minItems": 200}


class Timed:
    """A constraint, with what its masks took."""

    def __init__(self, inner: TokenMask):
        self.inner, self.fills = inner, list[float]()

    def fill(self, allowed):
        begin = perf_counter()
        self.inner.fill(allowed)
        self.fills.append(perf_counter() - begin)

    def accept(self, token_id):
        self.inner.accept(token_id)


def decode(engine: Engine, prompt: list[int], masks: list[Timed | None], tokens: int) -> float:
    """Tokens a second of each of several answers: one over the median step, once all have their first token."""
    requests = [
        engine.add(
            prompt, SamplingParams(max_tokens=tokens, temperature=1, seed=i, ignore_eos=True), mask=mask
        )
        for i, mask in enumerate(masks)
    ]
    while not all(r.output_token_ids for r in requests):
        engine.step()
    steps = []
    while all(r.finish_reason is None for r in requests):
        begin = perf_counter()
        engine.step()
        steps.append(perf_counter() - begin)
    while engine.has_work:
        engine.step()
    assert all(r.error is None for r in requests), [r.error for r in requests]
    return 1 / statistics.median(steps)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    options = EngineOptions(
        backend="auto", threads=given.threads, max_model_len=1024, max_num_seqs=given.rows
    )
    engine = Engine.load(given.model, options)
    tokenizer = Tokenizer.from_metadata(engine.model_file.metadata)
    compiler = GrammarCompiler(tokenizer, engine.model_config.vocab_size)
    begin = perf_counter()
    compiler.compile(json_grammar(MANY))
    compile_ms = (perf_counter() - begin) * 1e3
    prompt = tokenizer.encode("A JSON list of people and companies with their ages and tags:\n")
    free, masked, fills = [], [], []
    for round_ in range(given.rounds + 1):  # the first warms up
        f = decode(engine, prompt, [None] * given.rows, given.tokens)
        masks = [
            Timed(TokenConstraint(compiler, compiler.compile(json_grammar(MANY)), None))
            for _ in range(given.rows)
        ]
        m = decode(engine, prompt, [*masks], given.tokens)
        if round_:
            free.append(f)
            masked.append(m)
            fills += [t for mask in masks for t in mask.fills]
    fills.sort()
    found = {
        "model": given.model.name,
        "rows": given.rows,
        "free_tps": round(statistics.median(free), 2),
        "masked_tps": round(statistics.median(masked), 2),
        "cost_percent": round(100 * (1 - statistics.median(masked) / statistics.median(free)), 2),
        "mask_us_mean": round(statistics.mean(fills) * 1e6, 1),
        "mask_us_p99": round(fills[int(len(fills) * 0.99)] * 1e6, 1),
        "vocabulary_and_compile_ms": round(compile_ms, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
