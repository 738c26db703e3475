"""Compiles every kernel of the experiments for one architecture into the cache; needs no GPU.

Usage: python -m benchmarks.contract.precompile [ARCH] [WORKERS]
"""

import sys
from concurrent.futures import ProcessPoolExecutor

from benchmarks.contract import harness, layers, products, steps


def jobs() -> list[tuple[str, dict[str, str] | None]]:
    """(source, replaced headers) of each module."""
    found: list[tuple[str, dict[str, str] | None]] = [
        (products.READ_SOURCE, None),
        (layers.SOURCE, None),
        (steps.SOURCE, None),
    ]
    for name, (_, k) in products.SHAPES.items():
        for _, copies, free, rule, threads in products.gemv_variants(name, False):
            headers = None if rule == products.RULE else products.contract_text(*rule)
            found.append((products.gemv_source(name, k, copies, free, threads), headers))
        found += [
            (products.gemm_source(name, segmented, k), headers)
            for _, segmented, headers in products.gemm_variants(name)
        ]
    return found


def main() -> None:
    arch = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
    with ProcessPoolExecutor(int(sys.argv[2]) if len(sys.argv) > 2 else 2) as pool:
        work = [pool.submit(harness.compile_cubin, source, arch, headers) for source, headers in jobs()]
        sizes = [len(w.result()) for w in work]
    print(f"{len(sizes)} modules, {sum(sizes) >> 20} MB")


if __name__ == "__main__":
    main()
