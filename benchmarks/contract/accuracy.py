"""Error of the contract's functions against float64, in units in the last place of the float32 result.

Usage: python -m benchmarks.contract.accuracy [STEP]   (every STEP-th float32 of each range)
"""

import sys

import numpy as np
from benchmarks.contract.cpu import Cpu


def floats(low: float, high: float, step: int) -> np.ndarray:
    """Every step-th float32 from low to high, both positive or both negative."""
    a, b = (int(np.float32(abs(v)).view(np.int32)) for v in (low, high))
    bits = np.arange(min(a, b), max(a, b), step, dtype=np.int32)
    return bits.view(np.float32) * np.float32(1 if high > 0 else -1)


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in ulps of the float32 nearest to exact."""
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - exact) / unit


EXACT = {
    "exp32": np.exp,
    "log32": np.log,
    "sigmoid32": lambda x: 1 / (1 + np.exp(-x)),
    "silu32": lambda x: x / (1 + np.exp(-x)),
    "softplus32": lambda x: np.where(x > 30, x + np.exp(-x), np.log1p(np.exp(np.minimum(x, 30)))),
}
RANGES = {
    "exp32": [(-87.0, -1e-3), (1e-3, 88.0)],
    "log32": [(2.0**-126, 0.5), (0.5, 2.0), (2.0, 3e38)],
    "sigmoid32": [(-86.0, -1e-3), (1e-3, 80.0)],
    "silu32": [(-80.0, -1e-3), (1e-3, 80.0)],
    "softplus32": [(-80.0, -1e-3), (1e-3, 80.0)],
}


def main() -> None:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 37
    cpu = Cpu()
    for index, name in enumerate(EXACT):
        for low, high in RANGES[name]:
            x = np.ascontiguousarray(floats(low, high, step))
            u = ulps(cpu.map(index, x), EXACT[name](x.astype(np.float64)))
            at = int(np.argmax(u))
            where = f"{name:10} [{low:9.3g}, {high:9.3g}] {len(x):9} values"
            print(f"{where}: max {u[at]:.3f} ulp at {x[at]:.7g}, mean {u.mean():.3f}")


if __name__ == "__main__":
    main()
