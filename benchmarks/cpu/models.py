"""Whole-model rates, ours and llama.cpp's in turns, each run in a process of its own (waiting threads of either would
disturb the other); start to first token; resident memory.

python benchmarks/cpu/models.py MODEL.gguf ... [--llama-python PYTHON] [--prompt 512] [--gen 64] [--rounds 3]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from strata import _native

# Run by the interpreter that has llama_cpp: random tokens in, greedy tokens out.
LLAMA = """
import json, sys, time
from llama_cpp import Llama
model, prompt, gen, threads = sys.argv[1], *map(int, sys.argv[2:5])
llama = Llama(model, n_ctx=prompt + gen + 8, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
tokens = [(7919 * i) % 40000 + 100 for i in range(prompt)]
llama.eval(tokens[:32]); llama.reset()
start = time.perf_counter(); llama.eval(tokens); token = llama.sample(temp=0); first = time.perf_counter()
for _ in range(gen):
    llama.eval([token]); token = llama.sample(temp=0)
end = time.perf_counter()
print(json.dumps({"prompt": prompt / (first - start), "generation": gen / (end - first)}))
"""


def last_json(command: list[str]) -> Any:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout[done.stdout.index("{") :])


def ours(model: str, args: argparse.Namespace) -> dict[str, float]:
    command = [
        str(Path(sys.executable).parent / "strata"),
        "benchmark",
        "--model",
        model,
        "--json",
        "--rounds",
        "1",
    ]
    command += ["--prompt-len", str(args.prompt), "--gen-len", str(args.gen), "--threads", str(args.threads)]
    found = last_json(command)
    return {
        "prompt": found["prompt_tps"],
        "generation": found["generation_tps"],
        "bytes": found["weight_bytes_per_token"] + found["kv_bytes_per_token"],
    }


def theirs(model: str, args: argparse.Namespace) -> dict[str, float]:
    sizes = [str(args.prompt), str(args.gen), str(args.threads)]
    return dict(last_json([args.llama_python, "-c", LLAMA, model, *sizes]))


def read_rate(threads: int) -> float:
    """GB/s of reading memory with `threads` threads, the median of five."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones(32 << 20, np.uint64), threads)
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda p: _native.sum_words(p.ctypes.data, p.size), parts))
            rates.append(8 * (32 << 20) / (time.perf_counter() - start) / 1e9)
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument(
        "--llama-python", help="interpreter that has llama_cpp; without it only ours is measured"
    )
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--gen", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    sides = {"ours": ours} | ({"llama.cpp": theirs} if args.llama_python else {})
    for model in args.models:
        rates: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, run in sides.items():
                rates[name].append(run(model, args))
        memory = read_rate(args.threads)
        size = Path(model).stat().st_size
        print(
            f"{Path(model).name}  {size / 1e6:.0f} MB, memory reads {memory:.1f} GB/s, {args.threads} threads"
        )
        medians = {n: {k: statistics.median(r[k] for r in rs) for k in rs[0]} for n, rs in rates.items()}
        for key in ("prompt", "generation"):
            line = f"  {key:10} ours {medians['ours'][key]:8.1f} tok/s"
            if "llama.cpp" in medians:
                other = medians["llama.cpp"][key]
                line += f"  llama.cpp {other:8.1f}  {medians['ours'][key] / other:5.2f}x"
            if key == "generation":
                share = medians["ours"][key] * medians["ours"]["bytes"] / 1e9 / memory
                line += f"  bytes of ours {share:.0%} of memory's rate"
            print(line, flush=True)


if __name__ == "__main__":
    main()
