"""Kernels by NVRTC for the GPU that is there, kept on disk. Needs no GPU and no CUDA toolkit, only the NVRTC library.

Lifecycle of an image: look in the cache; take the entry's lock (other processes wait); look again; compile; write a
file of our own and rename it, so that a reader never meets half of one. A missing library and a compile error are
DeviceErrors.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strata.backends.cuda.driver import Source
from strata.errors import DeviceError

KERNELS = Path(__file__).parent / "kernels"
_HEADERS = (Path(__file__).parents[2] / "include", Path(__file__).parents[4] / "native" / "include")
INCLUDE = (KERNELS, next((p for p in _HEADERS if p.is_dir()), _HEADERS[0]))  # installed, or a source tree
OPTIONS = ("--std=c++20", "--fmad=false", "-default-device")
# With what only these have: products of a whole warpgroup, registers that move between warpgroups.
FEATURES = {arch: f"{arch}a" for arch in ("sm_90", "sm_100", "sm_103")}
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

Progress = Callable[[int, int], None]  # done, of how many


def nvrtc() -> Any:
    """The bindings; DeviceError in one line where the package or its library is missing."""
    try:
        from cuda.bindings import nvrtc as found

        found.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DeviceError(
            f"the CUDA compiler (NVRTC) is not there: {first}; install the extra cuda13 or cuda12"
        ) from None
    return found


def version() -> tuple[int, int]:
    """NVRTC's version."""
    _, major, minor = nvrtc().nvrtcVersion()
    return major, minor


def targets() -> list[int]:
    """Architectures that this NVRTC makes machine code for: 75 for sm_75."""
    return list(nvrtc().nvrtcGetSupportedArchs()[1])


class Compiler:
    """Compiles sources for one architecture into `cache`."""

    def __init__(self, arch: str, cache: Path, include: Sequence[Path] = INCLUDE):
        self._arch, self._cache, self._include = arch, cache, tuple(include)
        self.compiled = 0  # images made, not found

    def image(self, source: Source) -> bytes:
        """Machine code (or PTX, for a GPU newer than NVRTC) of a source."""
        kept = self.path(source)
        if (found := _read(kept)) is not None:
            return found
        self._cache.mkdir(parents=True, exist_ok=True)
        with _locked(kept.with_suffix(".lock")):
            if (found := _read(kept)) is not None:
                return found
            image = self._compile(source, kept.with_suffix(".log"))
            own = kept.with_suffix(f".{os.getpid()}")
            own.write_bytes(image)
            own.replace(kept)
        self.compiled += 1
        return image

    def path(self, source: Source) -> Path:
        """Where the image is kept. The name is made of the text with all that it includes, architecture, options and
        NVRTC's version, and of nothing else."""
        return self._cache / f"{self._key(source)}.cubin"

    def images(self, sources: Iterable[Source], progress: Progress | None = None) -> list[bytes]:
        """Images of several sources, compiled side by side; NVRTC runs without Python's lock."""
        wanted = list(sources)
        workers = min(len(os.sched_getaffinity(0)), 16, max(len(wanted), 1))
        done = 0
        with ThreadPoolExecutor(workers) as pool:
            pending = []
            for image in pool.map(self.image, wanted):
                pending.append(image)
                done += 1
                if progress is not None:
                    progress(done, len(wanted))
        return pending

    def log(self, source: Source, *options: str) -> str:
        """What ptxas says of registers and spills. `options`: NVRTC's, beside those that images are made with."""
        return _log(self._program(source, ("--ptxas-options=-v", *options))[0])

    def _key(self, source: Source) -> str:
        text = [source.text, FEATURES.get(self._arch, self._arch), repr(OPTIONS), repr(version())]
        text += [f.read_text(encoding="utf-8") for f in self._files(source.text)]
        return hashlib.sha256("\0".join(text).encode()).hexdigest()[:32]

    def _files(self, text: str) -> list[Path]:
        """Every file that a text includes, directly or not, in order of first mention."""
        found: dict[Path, None] = {}
        waiting = _INCLUDED.findall(text)
        while waiting:
            name = waiting.pop(0)
            path = next((d / name for d in self._include if (d / name).is_file()), None)
            if path is not None and path not in found:
                found[path] = None
                waiting += _INCLUDED.findall(path.read_text(encoding="utf-8"))
        return list(found)

    def _compile(self, source: Source, log: Path) -> bytes:
        program, code, native = self._program(source)
        library = nvrtc()
        if int(code) != 0:
            text = _log(program)
            log.write_text(f"{source}\n{text}", encoding="utf-8")
            first = next((line for line in text.splitlines() if "error" in line), text.strip() or str(code))
            raise DeviceError(
                f"{source} does not compile for {self._arch}: {first.strip()}; all of it is in {log}"
            )
        size, get = (
            (library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN)
            if native
            else (library.nvrtcGetPTXSize, library.nvrtcGetPTX)
        )
        image: bytes = b" " * int(size(program)[1])
        get(program, image)
        library.nvrtcDestroyProgram(program)
        return image

    def _program(self, source: Source, extra: tuple[str, ...] = ()) -> tuple[Any, Any, bool]:
        """(program, result code, whether for the architecture itself and not as PTX)."""
        library = nvrtc()
        number, known = int(self._arch.removeprefix("sm_")), targets()
        native = number in known
        below = [t for t in known if t <= number]
        if not below:
            raise DeviceError(f"the GPU is {self._arch}; NVRTC {version()[0]} begins at sm_{min(known)}")
        own = FEATURES.get(self._arch, self._arch)
        arch = own if native else f"compute_{max(below)}"
        options = [f"--gpu-architecture={arch}", *OPTIONS, *(f"-I{p}" for p in self._include), *extra]
        code, program = library.nvrtcCreateProgram(source.text.encode(), b"kernel.cu", 0, [], [])
        if int(code) != 0:
            raise DeviceError(f"NVRTC refused {source}: {code!r}")
        (code,) = library.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        return program, code, native


def _log(program: Any) -> str:
    library = nvrtc()
    text: bytes = b" " * int(library.nvrtcGetProgramLogSize(program)[1])
    library.nvrtcGetProgramLog(program, text)
    return text.decode(errors="replace").rstrip("\0 \n")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
