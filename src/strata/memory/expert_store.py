"""Experts in RAM: all of them, or as many as a budget holds and the rest on disk (native/tiers/store.h)."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from strata import _native, hw, log
from strata.backends.cpu.tiers import ExpertTiers
from strata.errors import MemoryLimitError, ModelFileError
from strata.gguf import ModelFile
from strata.memory.file_places import FilePlaces
from strata.ops import ExpertWeights, Weight

Progress = Callable[[int, int], None]  # bytes that are there, bytes in all

_READS = 32  # under way at once
_COPIERS = 8  # threads that copy files which lie in memory
_SLOW = 200e6  # bytes per second: under it a disk is worth a word
_PATIENCE_SECONDS = 5.0  # before it is said
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class StoreOptions:
    """How experts are kept. `budget`: bytes that they may take, 0: all; `lock`: page-lock what the system allows."""

    budget: int = 0
    lock: bool = False
    read_threads: int = 0  # 0: io_uring where it is granted; several threads where files lie in memory
    wait_seconds: float = 30.0
    lookahead: bool = True


def expert_layers(model: Any) -> tuple[ExpertWeights, ...]:
    """Every layer's experts that a model's dataclasses hold, in their order."""
    return tuple(dict.fromkeys(_experts(model)))


def trunk_expert_layers(model: Any) -> tuple[ExpertWeights, ...]:
    """The same without the draft layer's, which a GPU keeps with its dense weights."""
    drafts = set(_experts(getattr(model, "draft", None)))
    return tuple(layer for layer in expert_layers(model) if layer not in drafts)


def _experts(node: Any) -> Iterator[ExpertWeights]:
    if isinstance(node, ExpertWeights):
        yield node
    elif isinstance(node, tuple | list):
        for item in node:
            yield from _experts(item)
    elif is_dataclass(node) and not isinstance(node, type | Weight):
        for f in fields(node):
            yield from _experts(getattr(node, f.name))


class ExpertStore:
    """The experts of a model's layers; `tiers` is what a backend works with."""

    def __init__(self, layers: Sequence[ExpertWeights], files: Sequence[ModelFile], options: StoreOptions):
        """MemoryLimitError when the budget cannot hold one expert of each size or memory is refused."""
        self.layers, self._options = tuple(layers), options
        self._places = FilePlaces(files)
        stacks = [stack for layer in layers for stack in _stacks(layer)]
        self._tables = {stack: np.zeros(stack.shape[0], np.uint64) for stack in stacks}
        self.nbytes = sum(stack.nbytes for stack in stacks)
        self.counters = _native.TierCounters()
        self._guesses = _native.Guesses(len(self.layers), self.counters)
        self.native = self._create()
        self.whole = self.native.slots == self.native.experts

    def _create(self) -> _native.ExpertStore:
        o = self._options
        budget = o.budget or 1 << 62
        sources = [self._source(layer) for layer in self.layers]
        try:
            return _native.ExpertStore(
                sources, self._places.paths, budget, o.lock, self._threads(), _READS, self.counters
            )
        except ValueError as error:
            raise MemoryLimitError(f"--ram-budget-gib is {budget / 2**30:.4g} GiB: {error}") from None
        except MemoryError:
            wanted = min(budget, self.nbytes) / 2**30
            raise MemoryLimitError(
                f"the system refuses {wanted:.2f} GiB for experts in RAM; lower --ram-budget-gib"
            ) from None
        except OSError as error:
            raise ModelFileError(f"{error.filename}: cannot be read: {error.strerror}") from None

    def _threads(self) -> int:
        if self._options.read_threads or not all(hw.in_memory(path) for path in self._places.paths):
            return self._options.read_threads
        return min(_COPIERS, hw.cpu_count())

    def _source(self, layer: ExpertWeights) -> tuple[list[tuple[int, int, int, int]], list[int], int]:
        stacks = _stacks(layer)
        planes = []
        for stack in stacks:
            file, offset = self._places.find(stack)
            assert stack.data.shape[1] <= stack.data.strides[0], "experts of a stack do not overlap"
            planes.append((file, offset, int(stack.data.strides[0]), int(stack.data.shape[1])))
        return planes, [self._tables[stack].ctypes.data for stack in stacks], stacks[0].shape[0]

    def load(self, progress: Progress | None = None) -> None:
        """Reads experts until RAM holds what it can; ModelFileError names the first read that failed."""
        if self._options.lock:
            self._report_lock()
        if not self.whole:
            return
        count, started, warned = self.native.fill(), time.monotonic(), False
        while (done := self.native.filled) < count:
            time.sleep(_POLL_SECONDS)
            at, seconds = self.nbytes * done // count, time.monotonic() - started
            if progress is not None:
                progress(at, self.nbytes)
            if not warned and seconds > _PATIENCE_SECONDS and at / seconds < _SLOW:
                warned = True
                self._report_slow(at / seconds)
        if progress is not None:
            progress(self.nbytes, self.nbytes)
        if self.native.fill_error:
            raise ModelFileError(self.native.failure() or f"experts cannot be read: {self._reason()}")

    def _reason(self) -> str:
        return os.strerror(max(self.native.fill_error, 0))

    def _report_lock(self) -> None:
        locked, wanted = self.native.locked, self.native.nbytes
        if locked < wanted:
            log.logger(__name__).warning(
                "%.2f of %.2f GiB of experts are page-locked; the limit on lockable memory (ulimit -l) stops there, "
                "and copies from the rest are slower",
                locked / 2**30,
                wanted / 2**30,
            )

    def _report_slow(self, rate: float) -> None:
        log.logger(__name__).warning(
            "experts are read at %.0f MB/s, %.1f GB take %.0f minutes; put the model file on a local SSD",
            rate / 1e6,
            self.nbytes / 1e9,
            self.nbytes / max(rate, 1) / 60,
        )

    @property
    def tiers(self) -> ExpertTiers:
        """For a backend."""
        o = self._options
        return ExpertTiers(
            store=self.native,
            counters=self.counters,
            layers={layer.gate: i for i, layer in enumerate(self.layers)},
            tables=self._tables,
            blob_bytes=tuple(sum(-(-s.data.shape[1] // 64) * 64 for s in _stacks(x)) for x in self.layers),
            whole=self.whole,
            wait_limit_ns=int(o.wait_seconds * 1e9),
            lookahead=o.lookahead,
            guesses=self._guesses,
            stacks=tuple(_stacks(layer) for layer in self.layers),
        )


def _stacks(layer: ExpertWeights) -> tuple[Weight, Weight, Weight]:
    return layer.gate, layer.up, layer.down
