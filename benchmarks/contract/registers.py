"""Registers, shared memory and spills of every kernel, by NVRTC, for each architecture; needs no GPU.

Usage: python -m benchmarks.contract.registers [ARCH,ARCH,...]
"""

import re
import sys

from benchmarks.contract import harness, layers, products, steps

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ENTRY = re.compile(
    r"Function properties for (\S+)\n\D+\d+ bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers",
    re.S,
)


def sources() -> dict[str, str]:
    """Label -> source."""
    found = {}
    for name, (_, k) in products.SHAPES.items():
        found[f"gemv {name}"] = products.gemv_source(name, k, 1, False)
        found[f"gemm {name}"] = products.gemm_source(name, True, k)
    return found | {"step": steps.SOURCE, "layer": layers.SOURCE}


def main() -> None:
    archs = sys.argv[1].split(",") if len(sys.argv) > 1 else ARCHS
    table: dict[str, dict[str, str]] = {}
    for arch in archs:
        for label, source in sources().items():
            for kernel, spill, registers in ENTRY.findall(harness.compile_log(source, arch)):
                cell = registers + (f" ({spill} B)" if int(spill) else "")
                table.setdefault(f"{label} {kernel}", {})[arch] = cell
    print("| kernel | " + " | ".join(archs) + " |\n|" + "---|" * (len(archs) + 1))
    for kernel, row in table.items():
        print(f"| {kernel} | " + " | ".join(row.get(a, "-") for a in archs) + " |")


if __name__ == "__main__":
    main()
