"""Experts larger than RAM: how fast they are read, and that a model decodes with the hash of the mapped file.

usage: ssd.py MODEL.gguf [--make] [--layers 6] [--share 0.25] [--tokens 24] [--prompt 64] [--threads 0]

`--share`: of the experts' bytes, what RAM may hold. Prints one JSON object a line: plain direct reads in order (the
best of three block sizes, before and after), filling a fresh store whose pages are there, then the decoding of the same
tokens with the file mapped, without look-ahead and with it.
"""

import argparse
import dataclasses
import hashlib
import json
import mmap
import os
import time
from pathlib import Path

import numpy as np

from strata import models
from strata.config import EngineOptions
from strata.engine.load import load_model
from strata.engine.teacher import Teacher
from strata.gguf import open_model
from strata.memory.counters import read_counters
from strata.memory.expert_store import ExpertStore, StoreOptions, expert_layers
from strata.synth import FULL, PlantedOptions, write_planted

BLOCKS = (1 << 20, 8 << 20, 32 << 20)
READ_SECONDS = 1.0


def make(args):
    """Full widths, a small vocabulary; mixers and experts carry half of the residual's energy."""
    geometry = dataclasses.replace(FULL, num_layers=args.layers, draft=False, vocab_size=8192)
    written = write_planted(args.model, PlantedOptions(geometry, gain=None), os.cpu_count())
    return {"made": str(args.model), "bytes": written.nbytes}


def sequential(path, block):
    """Bytes per second of direct reads in order, one at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, block)
    size, at, total, start = os.fstat(fd).st_size // block * block, 0, 0, time.perf_counter()
    while time.perf_counter() - start < READ_SECONDS:
        total += os.preadv(fd, [buffer], at)
        at = (at + block) % size
    seconds = time.perf_counter() - start
    os.close(fd)
    return total / seconds


def plain(path):
    """The best block size."""
    rates = {block: sequential(path, block) for block in BLOCKS}
    best = max(rates, key=rates.get)
    return {"plain_gbps": round(rates[best] / 1e9, 3), "block": best}


def cold(args):
    """Every slot of a fresh store filled, expert by expert."""
    file = open_model(args.model)
    layers = expert_layers(models.load(file))
    total = sum(w.nbytes for layer in layers for w in (layer.gate, layer.up, layer.down))
    store = ExpertStore(layers, [file], StoreOptions(budget=int(total * args.share)))
    start = time.perf_counter()
    count = store.native.fill()
    while store.native.filled < count:
        time.sleep(0.001)
    seconds = time.perf_counter() - start
    read = read_counters(store.counters)["read_bytes"]
    return {
        "cold_gbps": round(read / seconds / 1e9, 3),
        "read_gb": round(read / 1e9, 2),
        "experts_gb": round(total / 1e9, 2),
        "ram_gb": round(store.native.nbytes / 1e9, 2),
        "method": store.native.method,
        "direct": store.native.direct,
    }


def decode(args, budget_gib, lookahead):
    """Tokens of the planted cycle, one a step: the hash of their logits, and what was read."""
    options = EngineOptions(
        device="cpu",
        threads=args.threads,
        ram_budget_gib=budget_gib,
        lookahead="on" if lookahead else "off",
        max_model_len=1024,
        prefill=64,
    )
    loaded = load_model(args.model, options)
    teacher, tokens = Teacher(loaded.runner), [int(t) for t in np.load(f"{args.model}.cycle.npy")[:512]]
    list(teacher.read("chunk", 0, tokens[: args.prompt], range(0)))
    before = {} if loaded.experts is None else read_counters(loaded.experts.counters)
    digest, start = hashlib.sha256(), time.perf_counter()
    for at in range(args.prompt, args.prompt + args.tokens):
        digest.update(next(teacher.read("step", at, [tokens[at]], range(1))).tobytes())
    seconds = time.perf_counter() - start
    found = {"sha256": digest.hexdigest(), "tps": round(args.tokens / seconds, 2)}
    if loaded.experts is None:
        return found
    now = read_counters(loaded.experts.counters)
    c = {name: now[name] - before[name] for name in now}
    return found | {
        "budget_gib": round(budget_gib, 3),
        "lookahead": lookahead,
        "ram_hit_rate": round(c["ram_hits"] / max(c["ram_hits"] + c["ram_misses"], 1), 3),
        "read_gbps": round(c["read_bytes"] / seconds / 1e9, 3),
        "waited_share": round(c["read_wait_ns"] / 1e9 / seconds, 3),
        "guess_precision": round(c["lookahead_right"] / max(c["lookahead_guesses"], 1), 3),
        "guess_recall": round(c["lookahead_right"] / max(c["lookahead_routed"], 1), 3),
        "prefetched": c["prefetches"],
        "prefetch_used": c["prefetch_used"],
        "once": c["routed_pairs"] == c["computed_pairs"],
    }


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--make", action="store_true", help="write the planted file and stop")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=64, help="tokens before, a multiple of 64")
    parser.add_argument("--threads", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse()
    if args.make:
        print(json.dumps(make(args)))
        return
    print(json.dumps(plain(args.model)), flush=True)
    filled = cold(args)
    print(json.dumps(filled), flush=True)
    print(json.dumps(plain(args.model)), flush=True)
    for budget, lookahead in (
        (0, False),
        (filled["ram_gb"] * 1e9 / 2**30, False),
        (filled["ram_gb"] * 1e9 / 2**30, True),
    ):
        print(json.dumps(decode(args, budget, lookahead)), flush=True)


if __name__ == "__main__":
    main()
