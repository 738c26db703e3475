"""Compiles here what stages need there: the kernels that their models are lowered to on an H200, found without one.
Needs NVRTC of the version that the GPU's machine has.

An image's name is made of NVRTC's version, the kernel's text and what it includes (backends/cuda/compile.py), and of
nothing that the driver says; so the engine finds it wherever that NVRTC is.
"""

import gc
import os
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_check import decide, first_steps, nodes, prompts
from gpu_check.drafts import vocabulary
from gpu_check.files import FILES, Options
from gpu_check.rehearsal import H200
from gpu_check.settings import setting
from strata.backends.cuda import CudaBackend, kernel_cache
from strata.backends.cuda.compile import Compiler, version
from strata.backends.cuda.driver import COMPUTE, HostMemory, Kernel, Launch, Source
from strata.backends.cuda.replay import CudaReplay
from strata.backends.cuda.tier import ExpertTier
from strata.config import EngineOptions
from strata.engine import gpu_experts
from strata.engine.load import load_model
from strata.errors import DeviceError
from strata.synth import FULL, PlantedOptions, planted, write_dense, write_planted
from strata.synth.files import ParallelWriter

_LAYERS = 4  # one of each kind; more have the same kernels
_LONG = {"kv": "int8", "max_model_len": 32768}
_DRAFTED = {"kv": "int8", "mtp": "on", "max_model_len": 4096, "draft_vocab": "some"}  # of the ids
_TIERS = {"kv": "int8", "expert_cache": "200", "max_model_len": 8192}

# File and options of the stages' loads, those left out that have the kernels of another.
LOADS: list[tuple[str, dict[str, Any]]] = [
    *((file, {"kv": "int8"}) for file in (*first_steps.KINDS.values(), "planted-2.gguf")),
    *(("attention-1.gguf", {"kv": kv}) for kv in ("f32", "f16", "k8v4", "q4")),
    *(("dense-4.gguf", {"kv": kv}) for kv in ("int8", "f16")),
    *((f"dense-{kind}.gguf", {**_LONG, "prefill": "2048"}) for kind in ("Q4_K", "Q8_0", "F16")),
    *(("planted.gguf", {"kv": kv, "mtp": "on"}) for kv in ("f32", "f16", "int8", "k8v4", "q4")),
    *(("planted.gguf", {**_DRAFTED, **more}) for more in ({"max_num_seqs": 8}, {"expert_cache": "600"})),
    *(("planted-4.gguf", {"kv": kv, "max_model_len": n}) for kv in ("f16", "int8") for n in (192, 65536, 262144)),
    ("planted-8.gguf", {"prefill": "12288", "max_model_len": 12416}),
    ("planted.gguf", {"kv": "int8", "prefill": "auto", "expert_cache": "600", "max_model_len": 262144}),
    ("planted.gguf", {"kv": "int8", "kv_resident": 20480, "max_model_len": 65536, "max_num_seqs": 4}),
    *(("planted.gguf", {"kv": kv, "prefill": rows}) for kv in ("f16", "int8") for rows in ("2048", "12288")),
    *(("planted.gguf", {**_TIERS, "prefill": rows, "cpu_share": "auto"}) for rows in ("0", "512", "2048", "8192")),
    ("planted.gguf", {**_TIERS, "kv": "f16", "prefill": "2048", "cpu_share": "0"}),
    *(("planted-few.gguf", {"kv": "int8", "ngram_table": mode}) for mode in ("ram", "map")),
    ("planted-8-few.gguf", {"kv": "int8", "kv_resident": 32768, "max_model_len": 65536}),
    *((f"planted-{n}.gguf", {"kv": "int8", "prefill": rows}) for n in ("2", "narrow") for rows in ("64", "128")),
]  # fmt: skip


class Collector:
    """A driver that computes nothing and remembers what it was given."""

    def __init__(self) -> None:
        self.properties, self.sources, self._next, self.taken = H200, set[Source](), 1 << 40, 0

    def close(self) -> None:
        pass

    def allocate(self, nbytes: int) -> int:
        address = self._next
        self._next += -(-max(nbytes, 1) // 4096) * 4096
        self.taken += nbytes
        return address

    def allocate_host(self, nbytes: int) -> HostMemory:
        array = np.zeros(max(nbytes, 1), np.uint8)
        return HostMemory(array.ctypes.data, array[:nbytes])

    def register(self, address: int, nbytes: int) -> int:
        return address

    def unregister(self, address: int) -> None:
        pass

    def free_memory(self) -> int:
        return self.properties.memory - self.taken

    def upload(self, address: int, data: NDArray[Any]) -> None:
        pass

    def download(self, address: int, out: NDArray[Any]) -> None:
        out.fill(0)

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        self.sources |= {kernel.source for kernel in kernels}

    def record(self, launches: Sequence[Launch], stream: int = COMPUTE) -> Any:
        self.prepare([launch.kernel for launch in launches])

    def replay(self, graph: Any, stream: int = COMPUTE) -> None:
        pass

    def launch(self, launch: Launch) -> None:
        self.prepare([launch.kernel])

    def synchronize(self) -> None:
        pass

    def event(self, timed: bool = False) -> Any:
        return 0

    signal = wait_on = wait = lambda self, *arguments: None

    def passed(self, event: Any) -> bool:
        return True

    def mark(self) -> Any:
        return 0

    def elapsed(self, first: Any, last: Any) -> float:
        return 0.0


class Lowering(CudaBackend):
    """Remembers the kernels of every program, whole and, of one row's, op by op."""

    def lower(self, *arguments: Any, **more: Any) -> CudaReplay:
        replay = super().lower(*arguments, **more)
        self.driver.prepare([node.kernel for node in replay.launches])
        replay.prepare()
        return replay


def collect() -> list[Source]:
    """Sources of all stages' kernels."""
    driver = Collector()
    with tempfile.TemporaryDirectory() as folder:
        for file, options in LOADS:
            begin, before = time.perf_counter(), len(driver.sources)
            _lower(_hollow(Path(folder) / file, FILES[file]()), options, driver)
            found = f"{len(driver.sources) - before} kernels in {time.perf_counter() - begin:.1f} s"
            print(f"{file} {options}: {found}", flush=True)
    return sorted(driver.sources | {kernel.source for kernel in prompts.kernels()}, key=str)


def _hollow(path: Path, options: Options) -> Path:
    """The file with holes for tensors, and with few layers."""
    if path.exists():
        return path
    geometry = replace(options.geometry, num_layers=min(options.geometry.num_layers, _LAYERS))
    nothing = lambda *arguments: np.zeros((0, geometry.hidden_size), np.float16)  # noqa: E731
    with setting(ParallelWriter, "submit", lambda self, entry: None), setting(planted, "embeddings", nothing):
        write = write_planted if isinstance(options, PlantedOptions) else write_dense
        write(path, replace(options, geometry=geometry), 1)
    return path


def _lower(path: Path, options: dict[str, Any], driver: Collector) -> None:
    """Collects the kernels of a load, with those of the lowerings that stages compare."""
    driver.taken = 0
    if options.get("draft_vocab") == "some":
        options = {**options, "draft_vocab": vocabulary(path, list(range(FULL.vocab_size)))}
    chosen = EngineOptions(
        device="cpu", **{"prefill": "0", "max_model_len": 4096, "ram_limit_gib": 120, **options}
    )
    backend = Lowering(driver)  # type: ignore[arg-type]
    with (
        setting(gpu_experts, "AHEAD", decide.MOST),
        setting(ExpertTier, "fill", lambda self, experts: 0),
    ):
        loaded = load_model(path, chosen, None, backend)
    loaded.stop_policy()
    program = loaded.runner.programs.of("step", 1).program
    for settings in nodes.VARIANTS.values():
        with ExitStack() as changed:
            for module, key, value in settings:
                changed.enter_context(setting(module, key, value))
            backend.lower(program)
    if "kv_resident" in options:  # stage 8 runs these steps in parts
        replay = backend.lower(program)
        for i in range(len(program)):
            driver.record(replay._between(i, i + 1))
    backend.close()
    del loaded
    gc.collect()  # experts in RAM


def make() -> int:
    """Compiles what the cache lacks; how many do not compile."""
    wanted, folder = collect(), kernel_cache()
    compiler, begin = Compiler(H200.arch, folder), time.perf_counter()

    def error(source: Source) -> str | None:
        try:
            compiler.image(source)
        except DeviceError as failure:
            return str(failure)
        return None

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        errors = [e for e in pool.map(error, wanted) if e is not None]
    packed = _pack(folder, [compiler.path(source) for source in wanted])
    print(
        f"{len(wanted)} kernels for {H200.arch} by NVRTC {'.'.join(map(str, version()))}: {compiler.compiled} "
        f"compiled in {time.perf_counter() - begin:.0f} s; {packed} has {packed.stat().st_size / 2**20:.1f} MiB"
    )
    print("\n".join(errors[:20]), end="\n" if errors else "")
    return len(errors)


def _pack(folder: Path, images: Sequence[Path]) -> Path:
    """These images beside their folder, a tenth of their size."""
    packed = folder.with_name(f"{folder.name}.tar.xz")
    with tarfile.open(packed, "w:xz") as archive:
        for path in images:
            if path.exists():
                archive.add(path, f"{folder.name}/{path.name}")
    return packed
