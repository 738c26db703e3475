"""What the CPU computes for stage 0, by name. Made files are the same on every machine, so that it can be computed
ahead (`gpu-check --wanted`) and carried. It counts only for the tree and the bytes of the file it was made with."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_check.files import WORK, model_file
from gpu_check.rehearsal import sized

ROOT = Path(__file__).resolve().parents[2]
CARRIED = sized(ROOT / "build/gpu-check/wanted.json", WORK / "wanted.json")
_PIECE = 32 << 20  # bytes of a file

Compute = Callable[[Path], Any]


class Wanted:
    """Values by name, each of a file; `sources`: how they are computed where they are not known."""

    def __init__(self, sources: dict[str, tuple[str, Compute]], carried: Path = CARRIED):
        self._sources, self._carried, self._checked = sources, carried, dict[str, bool]()
        self.computed: list[str] = []  # that were not carried
        self._known: dict[str, Any] = {"tree": tree_digest(), "files": {}, "values": {}}
        if carried.exists():
            found = json.loads(carried.read_text(encoding="utf-8"))
            if found["tree"] == self._known["tree"]:
                self._known = found
            else:
                print(f"{carried} is of another tree: hashes are computed here", flush=True)

    def __getitem__(self, name: str) -> Any:
        file, compute = self._sources[name]
        path, values = model_file(file), self._known["values"]
        if not self._holds(file, path):
            for other, (of, _) in self._sources.items():
                if of == file:
                    values.pop(other, None)
        if name not in values:
            begin = time.perf_counter()
            values[name] = compute(path)
            self.computed.append(name)
            self._save()
            print(f"wanted: {name} in {time.perf_counter() - begin:.1f} s", flush=True)
        return values[name]

    def _holds(self, file: str, path: Path) -> bool:
        """Whether what is known is of this file; from now on it is."""
        if file not in self._checked:
            now, known = file_digest(path), self._known["files"]
            self._checked[file] = known.get(file, now) == now
            if not self._checked[file]:
                print(f"{file} is not the one that hashes were computed for", flush=True)
            known[file] = now
        held, self._checked[file] = self._checked[file], True
        return held

    def _save(self) -> None:
        self._carried.parent.mkdir(parents=True, exist_ok=True)
        self._carried.write_text(json.dumps(self._known) + "\n", encoding="utf-8")


def tree_digest() -> str:
    """Of everything that decides what a CPU computes for these files."""
    found = hashlib.sha256()
    for folder in ("native", "src/strata", "scripts/gpu_check"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cpp", ".cuh", ".cu"):
                found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:32]


def file_digest(path: Path) -> str:
    """Of all bytes, piece by piece on all cores."""
    starts = range(0, path.stat().st_size, _PIECE)

    def piece(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return hashlib.sha256(file.read(_PIECE)).digest()

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return hashlib.sha256(b"".join(pool.map(piece, starts))).hexdigest()[:32]
