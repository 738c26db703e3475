"""A planted model at full widths: one hash of generated tokens' logits for all threads and row buckets.

usage: equality.py MODEL.gguf [--make] [--prompts 100,3000] [--tokens 512] [--threads 1,7,0] [--rows 2,4,8,16,32]
                   [--contract 8] [--budget-seconds S] [--experts N] [--used N] [--vocab N] [--layers N]

With --make the file is written first (8 layers, gain "half"). For each prompt length, prompt tokens along the planted
cycle are read and tokens generated greedily, one row a step; the logits after each of them are hashed. The same text
is then read in steps of more rows from the checkpoint after the prompt, and generated anew with other thread counts.
The contract backend, too slow for the prompt, goes on from the CPU's checkpoint after it, by NRMSE. Prints one JSON
object a case.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from strata.config import EngineOptions
from strata.engine.load import load_model
from strata.engine.teacher import Teacher
from strata.synth import FULL, PlantedOptions, write_planted

BOUND = 2e-3  # NRMSE between a backend and the contract


@dataclasses.dataclass
class Generated:
    """Tokens fed after the prompt, the hash of the logits after each, the first rows themselves, the prompt's end."""

    tokens: list[int]
    digest: str
    first: np.ndarray
    checkpoint: object


class Reader:
    """One loaded model whose only sequence is read from the start or from a checkpoint."""

    def __init__(self, args, threads, backend="cpu"):
        longest = max(args.prompts) + args.tokens + 1
        prefill = 0 if backend == "contract" else args.prefill
        options = EngineOptions(
            backend=backend, threads=threads, kv=args.kv, prefill=prefill, max_model_len=longest
        )
        loaded = load_model(args.model, options)
        self.runner, self.cutter, self.kept = loaded.runner, loaded.cutter, args.contract
        self.teacher = Teacher(loaded.runner)

    def prompt(self, tokens):
        """The logits after a prompt [vocab], and the checkpoint there."""
        self.runner.pages.free(0)
        at, pieces = 0, []
        while at < len(tokens):
            piece = self.cutter.cut(at, len(tokens) - at)
            end = at + piece.count
            wanted = range(piece.count - 1, piece.count) if end == len(tokens) else range(0)
            pieces = list(self.teacher.read(piece.form, at, tokens[at:end], wanted))
            at = end
        return pieces[0][0], self.runner.keeper.checkpoint(0, at, pages=True)

    def generate(self, prompt, count):
        """Greedy tokens, one row a step."""
        row, checkpoint = self.prompt(prompt)
        tokens, first, digest = [], [], hashlib.sha256()
        for i in range(count):
            tokens.append(int(row.argmax()))
            row = next(self.teacher.read("step", len(prompt) + i, tokens[-1:], range(1)))[0]
            digest.update(row.tobytes())
            first += [row] if i < self.kept else []
        return Generated(tokens, digest.hexdigest(), np.array(first), checkpoint)

    def reread(self, checkpoint, tokens, rows):
        """Logits pieces of the same tokens in steps of `rows` rows, from the checkpoint."""
        self.runner.pages.free(0)
        self.runner.keeper.restore(0, checkpoint)
        for i in range(0, len(tokens), rows):
            part = tokens[i : i + rows]
            yield from self.teacher.read("step", checkpoint.position + i, part, range(len(part)))


class Report:
    """Prints cases as they end, and refuses to start one when the budget is spent."""

    def __init__(self, budget):
        self.start, self.budget, self.unequal, self.skipped = time.perf_counter(), budget, 0, 0

    def case(self, run, **names):
        """Runs `run`, which returns what to print with whether it is `equal`; skipped when time is up."""
        began = time.perf_counter()
        if began - self.start > self.budget:
            self.skipped += 1
            print(json.dumps({**names, "skipped": "budget"}), flush=True)
            return
        found = run()
        self.unequal += not found["equal"]
        seconds = round(time.perf_counter() - began, 1)
        print(json.dumps({**names, **found, "seconds": seconds}), flush=True)

    def end(self):
        """The last line, and the exit status."""
        left = f"not known, {self.skipped} cases skipped" if self.skipped else "yes"
        verdict = "no" if self.unequal else left
        print(f"all equal: {verdict}")
        return 0 if verdict == "yes" else 1


def compare_rows(reader, base, rows):
    """The text re-read with `rows` rows a step."""
    digest = hashlib.sha256()
    for piece in reader.reread(base.checkpoint, base.tokens, rows):
        digest.update(piece.tobytes())
    return {"sha256": digest.hexdigest(), "equal": digest.hexdigest() == base.digest}


def compare_threads(args, threads, prompt, base):
    """Prompt and text anew with other threads."""
    again = Reader(args, threads).generate(prompt, args.tokens)
    equal = again.digest == base.digest and again.tokens == base.tokens
    return {"sha256": again.digest, "equal": equal}


def compare_contract(args, base):
    """The first rows on the contract backend, from the CPU's checkpoint."""
    reader = Reader(args, 1, "contract")
    exact = np.concatenate(list(reader.reread(base.checkpoint, base.tokens[: args.contract], args.contract)))
    error = np.sqrt(np.sum((base.first - exact) ** 2, -1) / np.sum(exact**2, -1))
    return {
        "sha256": hashlib.sha256(exact.tobytes()).hexdigest(),
        "sha256_cpu": hashlib.sha256(base.first.tobytes()).hexdigest(),
        "nrmse": float(error.max()),
        "bound": BOUND,
        "equal": bool(error.max() <= BOUND),
        "note": "goes on from the CPU's checkpoint after the prompt",
    }


def compare_prompt(args, report, reader, cycle, length):
    """All cases of one prompt length."""
    prompt, base = [int(t) for t in cycle[:length]], []

    def generate():
        base.append(reader.generate(prompt, args.tokens))
        follows = float(np.mean(np.array(base[0].tokens) == cycle[length : length + args.tokens]))
        return {"sha256": base[0].digest, "tokens_on_the_cycle": follows, "equal": True}

    names = {"prompt": length, "tokens": args.tokens, "kv": args.kv}
    report.case(generate, case="base", rows=1, threads=args.threads[-1], **names)
    for rows in args.rows if base else ():
        report.case(
            lambda rows=rows: compare_rows(reader, base[0], rows),
            case="rows",
            rows=rows,
            threads=args.threads[-1],
            **names,
        )
    if base and args.contract:
        report.case(
            lambda: compare_contract(args, base[0]), case="contract", prompt=length, tokens=args.contract
        )
    for threads in args.threads[:-1] if base else ():
        report.case(
            lambda threads=threads: compare_threads(args, threads, prompt, base[0]),
            case="threads",
            rows=1,
            threads=threads,
            **names,
        )


def make(args):
    """The planted file, with gain "half"."""
    sizes = {"num_experts": args.experts, "num_experts_per_tok": args.used, "vocab_size": args.vocab}
    geometry = dataclasses.replace(FULL, num_layers=args.layers, draft=False, **sizes)
    start = time.perf_counter()
    topics = min(64, args.vocab // 64)
    written = write_planted(args.model, PlantedOptions(geometry, topics=topics, gain=None), os.cpu_count())
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"made": str(args.model), "bytes": written.nbytes, **sizes, "seconds": seconds}))


def parse():
    """The command line."""

    def numbers(text):
        return [int(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--make", action="store_true", help="write the planted file first")
    for name, default in (("layers", 8), ("experts", 512), ("used", 10), ("vocab", FULL.vocab_size)):
        parser.add_argument(f"--{name}", type=int, default=default, help="of the file that --make writes")
    parser.add_argument("--prompts", type=numbers, default=[100, 3000])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument(
        "--threads", type=numbers, default=[1, 7, 0], help="the last is the base; 0: all cores"
    )
    parser.add_argument("--rows", type=numbers, default=[2, 4, 8, 16, 32])
    parser.add_argument(
        "--contract", type=int, default=8, help="tokens to compare with the contract; at most 32"
    )
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="start no case after it")
    return parser.parse_args()


def main():
    args = parse()
    if args.make:
        make(args)
    report = Report(args.budget_seconds)
    cycle = np.load(f"{args.model}.cycle.npy")
    reader = Reader(args, args.threads[-1])
    for length in args.prompts:
        compare_prompt(args, report, reader, np.resize(cycle, length + args.tokens), length)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
