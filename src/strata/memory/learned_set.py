"""What the residency policy has learned, kept between runs in one file that is replaced whole or not at all."""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata import log
from strata.hw import cache_directory

VERSION = 1
State = tuple[list[int], list[float], list[float], list[float]]  # as `_native.Policy.state` gives it


@dataclass(frozen=True)
class LearnedSet:
    """The place of one model's file. Losing it costs warm-up and nothing else, so failures are told and swallowed."""

    path: Path

    @classmethod
    def of(cls, fingerprint: str) -> "LearnedSet":
        """In the user's cache directory; `fingerprint` tells models apart."""
        return cls(cache_directory() / "residency" / f"{fingerprint}.npz")

    def load(self) -> State | None:
        """What was saved; None where there is nothing or it cannot be read."""
        try:
            with np.load(self.path, allow_pickle=False) as kept:
                if int(kept["version"]) != VERSION:
                    return None
                ages, counts, used, seen = (
                    kept[name].tolist() for name in ("ages", "counts", "used", "seen")
                )
                return ages, counts, used, seen
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged archive raises many kinds
            log.logger(__name__).warning("%s is left aside: %s", self.path, error)
            return None

    def save(self, state: State) -> bool:
        """Writes beside the old file and takes its place; False, and the old file stays, where the disk refuses."""
        ages, counts, used, seen = state
        arrays = {
            "version": np.array(VERSION),
            "ages": np.array(ages, np.int32),
            "counts": np.array(counts, np.float32),
            "used": np.array(used),
            "seen": np.array(seen),
        }
        part = ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd, part = tempfile.mkstemp(".part", self.path.name + ".", self.path.parent)
            with os.fdopen(fd, "wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its stub knows one form
                file.flush()
                os.fsync(file.fileno())
            Path(part).replace(self.path)
        except OSError as error:
            log.logger(__name__).warning("%s cannot be saved: %s", self.path, error.strerror)
            with suppress(OSError):
                if part:
                    Path(part).unlink()
            return False
        return True
