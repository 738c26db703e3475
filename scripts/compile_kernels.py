"""Compiles every kernel that the golden models and all block formats use, for every architecture. Needs no GPU.

scripts/compile_kernels.py [--archs sm_75,sm_90]    needs NVRTC (extra cuda13); about 15 minutes on two cores for all
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emulated_driver import EmulatedDriver

from strata.backends.cuda import CudaBackend
from strata.backends.cuda.compile import Compiler, targets
from strata.backends.cuda.driver import Launch, Source
from strata.backends.cuda.hot import hot_kernels
from strata.config import EngineOptions
from strata.engine.load import load_model
from strata.errors import DeviceError
from strata.quants import FORMATS

GOLDENS = Path(__file__).resolve().parents[1] / "tests" / "goldens"
FLOATS = ("F32", "F16", "BF16")


class Collector(EmulatedDriver):
    """Computes nothing; what is launched while loading is collected too."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: set[Source] = set()

    def launch(self, launch: Launch) -> None:
        self.sources.add(launch.kernel.source)


def sources() -> list[Source]:
    """Of all golden models, in every bucket, and of a product in every format."""
    found = {h.kernel.source for h in hot_kernels()}
    for path in sorted(GOLDENS.glob("*/model.gguf")):
        for kv in ("f32", "f16", "int8", "k8v4", "q4"):
            driver = Collector()
            options = EngineOptions(device="cpu", prefill=0, max_model_len=128, kv=kv)
            programs = load_model(path, options, None, CudaBackend(driver)).runner.programs
            for lowered in {*programs.step_of}:
                found |= {n.kernel.source for n in lowered.replay.launches}
            found |= {n.kernel.source for n in programs.sampler.launches} | driver.sources
    for name in FORMATS:
        kind, segments = ("STRATA_TYPE", f"QuantType::{name}"), [("STRATA_SEGMENTS", 16), ("STRATA_AHEAD", 5)]
        for rows in (1, 2, 4, 8):
            if name in FLOATS:
                found.add(
                    Source("linear_row.cu" if rows <= 2 else "linear_f.cu", (kind, ("STRATA_ROWS", rows)))
                )
                together = ("STRATA_ROWS", rows), ("STRATA_TOGETHER", 2 if rows <= 2 else 4)
                staying = (
                    ("STRATA_STAGES", 4),
                    ("STRATA_BLOCKS", 1),
                    ("STRATA_THREADS", 512),
                    ("STRATA_K", 2560),
                )
                found.add(Source("linear_pairs.cu", (kind, *together, *staying)))
            else:
                macros = (kind, ("STRATA_ROWS", rows), *segments, ("STRATA_LENGTH", 5), ("STRATA_HALF", 0))
                found.add(Source("linear_q.cu", macros))
    return sorted(found, key=str)


def main() -> int:
    parser = argparse.ArgumentParser(prog="compile-kernels")
    parser.add_argument("--archs", default=",".join(f"sm_{n}" for n in targets() if n >= 75))
    wanted, failed = sources(), 0
    for arch in parser.parse_args().archs.split(","):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor() as pool:
            compiler = Compiler(arch, Path(cache))

            def error(source: Source, compiler: Compiler = compiler) -> str | None:
                try:
                    compiler.image(source)
                except DeviceError as error:
                    return str(error)
                return None

            errors = [e for e in pool.map(error, wanted) if e is not None]
        print(
            f"{arch}: {len(wanted)} kernels, {len(errors)} fail, {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
        print("\n".join(errors[:20]), end="\n" if errors else "")
        failed += len(errors)
    return int(failed > 0)


sys.exit(main())
