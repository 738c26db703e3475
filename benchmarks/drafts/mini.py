"""Drafts on strata-mini and the CPU backend: acceptance by place and language, speed with and without, batches.

  python -m benchmarks.drafts.mini speed [--tokens N] [--languages english,code,chinese] [--temperature X]
  python -m benchmarks.drafts.mini acceptance          six held-out prompts of each language, seven drafts a step
  python -m benchmarks.drafts.mini vocabulary LATIN    Chinese with the draft vocabulary of a file and with the default
  python -m benchmarks.drafts.mini batch               1, 2, 4 and 8 sequences at once
Runs with and without drafts take turns; medians.
"""

import argparse
import statistics
import time
from pathlib import Path

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams, Status
from strata.gguf import open_model
from strata.text import Tokenizer

HERE = Path(__file__).resolve().parents[2] / "models" / "strata-mini"
MODEL = HERE / "strata-mini.gguf"
LANGUAGES = ("english", "code", "chinese")
PROMPT = 64


class Forced:
    """Seven drafts after every step, all verified."""

    def choose(self, reaches, passes=None):
        return [len(r) for r in reaches]

    def keep(self, reaches, passes):
        return self.choose(reaches)

    def saw_plain(self, sequences, ms):
        pass

    def saw_drafted(self, sequences, rows, ms, chain, chain_ms, tokens, extra_ms=0.0):
        pass


def prompts(language, count):
    """Held-out text in pieces, far apart."""
    text = (HERE / "held-out" / f"{language}.txt").read_text(encoding="utf-8")
    tokens = Tokenizer.from_metadata(open_model(MODEL).metadata).encode(text)
    step = (len(tokens) - PROMPT) // count
    return [tokens[i * step : i * step + PROMPT] for i in range(count)]


def engine(sequences=1, **more):
    options = EngineOptions(
        device="cpu", max_model_len=1024, max_num_seqs=sequences, prefill=64, **{"lookup": "on", **more}
    )
    return Engine.load(MODEL, options)


def run(e, texts, tokens, temperature=0.0):
    """Tokens a second after the first of each, and the answers."""
    e.forget()
    made = [
        e.add(t, SamplingParams(max_tokens=tokens, temperature=temperature, seed=i, ignore_eos=True))
        for i, t in enumerate(texts)
    ]
    while not all(r.output_token_ids for r in made):
        e.step()
    first, begin = sum(len(r.output_token_ids) for r in made), time.perf_counter()
    while any(r.status is not Status.FINISHED for r in made):
        e.step()
    total = sum(len(r.output_token_ids) for r in made) - first
    return total / (time.perf_counter() - begin), [r.output_token_ids for r in made]


def compare(off, on, texts, tokens, temperature, rounds):
    rates = {"off": [], "on": []}
    for _ in range(rounds):
        a, b = run(off, texts, tokens, temperature), run(on, texts, tokens, temperature)
        assert a[1] == b[1], "drafts changed the text"
        rates["off"].append(a[0])
        rates["on"].append(b[0])
    return [statistics.median(rates[name]) for name in ("off", "on")]


def told(counts):
    places = " ".join(f"{counts.accepted_at[p] / n:.1%}" for p, n in sorted(counts.proposed_at.items()))
    return (
        f"widest {counts.widest}, mean {counts.mean_accepted:.2f}, drafted {counts.drafted_steps} of "
        f"{counts.steps} steps, layer {counts.accepted['layer']}/{counts.proposed['layer']}, "
        f"lookup {counts.accepted['lookup']}/{counts.proposed['lookup']}; by place {places}"
    )


def speed(args):
    off, on = engine(spec=0), engine()
    for language in args.languages.split(","):
        texts = prompts(language, 6)
        run(on, texts[:1], 40)
        a, b = compare(off, on, texts[1:2], args.tokens, args.temperature, args.rounds)
        print(f"{language:8} {args.tokens} tokens: {a:.1f} without, {b:.1f} with, {b / a:.2f}x", flush=True)
    print(told(on.drafts.counts))


def acceptance(args):
    for language in args.languages.split(","):
        e = engine(lookup="off")
        e.scheduler.drafts.decision = Forced()
        for text in prompts(language, 6):
            run(e, [text], 96, args.temperature)
        counts, reach, chance = e.drafts.counts, [], 1.0
        for place in range(1, 8):
            chance *= counts.accepted_at[place] / max(counts.proposed_at[place], 1)
            reach.append(f"{chance:.1%}")
        print(
            f"{language:8} first n all right: {' '.join(reach)}; mean {counts.mean_accepted:.2f}", flush=True
        )


def vocabulary(args):
    for name, setting in (("default", "auto"), (args.latin.name, str(args.latin))):
        e = engine(lookup="off", draft_vocab=setting)
        e.scheduler.drafts.decision = Forced()
        for text in prompts("chinese", 6)[: args.rounds]:
            run(e, [text], 96)
        joined = e._runner.following.vocabulary
        print(f"{name}: {told(e.drafts.counts)}; joined {0 if joined is None else joined.joined}", flush=True)


def batch(args):
    for sequences in (1, 2, 4, 8):
        off, on = engine(sequences, spec=0), engine(sequences)
        texts = [t for language in LANGUAGES for t in prompts(language, 4)][:: 12 // sequences][:sequences]
        a, b = compare(off, on, texts, args.tokens, args.temperature, args.rounds)
        print(f"{sequences} sequences: {a:.1f} without, {b:.1f} with, {b / a:.2f}x", flush=True)
        print(f"  {told(on.drafts.counts)}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="benchmarks.drafts.mini")
    parser.add_argument("what", choices=("speed", "acceptance", "vocabulary", "batch"))
    parser.add_argument("latin", type=Path, nargs="?", default=Path("latin.json"))
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    args = parser.parse_args()
    {"speed": speed, "acceptance": acceptance, "vocabulary": vocabulary, "batch": batch}[args.what](args)


if __name__ == "__main__":
    main()
