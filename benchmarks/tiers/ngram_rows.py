"""Rows of the n-gram table by direct reads from a sparse file of the target's size: tokens a second.

usage: ngram_rows.py FILE [--rows 320001536] [--seconds 3]

The table is a hole, so what is measured is the asking: hashing is left out, every row is a direct read of its own
sectors, the cache holds 64 MiB. Sixteen rows a token, ids drawn at random over the whole table. Requests of one token
(decoding), 32 (a batch) and 512 (a prompt chunk). Prints one JSON object a line.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from strata import _native
from strata.memory.counters import read_counters
from strata.memory.ngram_store import MODES

ROW_BYTES, HEADS, HEADER = 90, 16, 4096
CACHE = 64 << 20


def measure(store, rows, tokens, seconds):
    """Tokens per second of requests of `tokens` tokens."""
    random = np.random.default_rng(tokens)
    out = np.zeros((tokens * HEADS, ROW_BYTES), np.uint8)
    requests = [random.integers(0, rows, tokens * HEADS).tolist() for _ in range(64)]
    box = store.add_box(tokens * HEADS)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        fresh = random.integers(0, rows)  # so that no request repeats
        ids = [(i + int(fresh)) % rows for i in requests[done % 64]]
        assert store.gather(box, ids, out.ctypes.data), store.failure()
        done += 1
    return done * tokens / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=320_001_536)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    size = HEADER + args.rows * ROW_BYTES
    with args.file.open("wb") as file:
        file.truncate(size)
    for threads in (0, 4):
        counters = _native.TierCounters()
        store = _native.NgramStore(
            str(args.file), HEADER, args.rows, ROW_BYTES, MODES.index("direct"), CACHE // ROW_BYTES,
            threads, 10**10, counters,
        )  # fmt: skip
        for tokens in (1, 32, 512):
            rate = measure(store, args.rows, tokens, args.seconds)
            print(
                json.dumps(
                    {
                        "tokens_per_request": tokens,
                        "tokens_per_second": round(rate),
                        "method": store.method,
                        "direct": store.direct,
                        "apparent_gb": round(size / 1e9, 2),
                    }
                ),
                flush=True,
            )
        c = read_counters(counters)
        print(
            json.dumps({"rows": c["ngram_rows"], "hits": c["ngram_hits"], "reads": c["ngram_reads"]}),
            flush=True,
        )
    args.file.unlink()


if __name__ == "__main__":
    main()
