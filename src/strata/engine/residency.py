"""The residency policy beside a device: started with what an earlier run learned, which is saved at the end."""

import hashlib
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, cast

from strata import _native, log
from strata.gguf import ModelFile
from strata.memory import Placement
from strata.memory.learned_set import LearnedSet


class Movable(Protocol):
    """A backend whose experts change places."""

    @property
    def device(self) -> _native.PolicyDevice:
        """The native device."""

    @property
    def num_experts(self) -> int:
        """Experts of a layer."""

    def fill(self, experts: Iterable[tuple[int, int]]) -> int:
        """Promotes (layer, expert) in turn into free slots, and waits; returns how many."""


GAIN = 0.05  # by which the share of uses of a newcomer must beat its victim's


class ResidencyPolicy:
    """Owns the native thread; `close` ends it and keeps what it has learned."""

    def __init__(self, backend: "Movable", learned: LearnedSet | None, link_rate: float):
        self._policy = _native.Policy(backend.device, link_rate, GAIN)
        self._learned = learned
        self._restore(backend)
        self._policy.start()
        self._end = weakref.finalize(self, _end, self._policy, learned)

    def _restore(self, backend: "Movable") -> None:
        experts = backend.num_experts
        best = self._best(len(backend.device.slots()))
        if best:
            count = backend.fill((e // experts, e % experts) for e in best)
            log.logger(__name__).info("%d experts that an earlier run used are in VRAM again", count)

    def _best(self, most: int) -> list[int]:
        """Experts of the best scores that an earlier run learned."""
        state = None if self._learned is None else self._learned.load()
        if state is None:
            return []
        try:
            return self._policy.restore(state, most)
        except (ValueError, TypeError) as error:
            log.logger(__name__).warning("what was learned is left aside: %s", error)
            return []

    @property
    def steps(self) -> int:
        """Steps learned from."""
        return self._policy.steps

    def close(self) -> None:
        """Ends the thread and saves; a second call does nothing."""
        self._end()


def _end(policy: _native.Policy, learned: LearnedSet | None) -> None:
    policy.stop()
    if learned is not None and policy.steps:
        learned.save(policy.state())


def start_policy(
    backend: object, file: ModelFile, placement: Placement, link_rate: float
) -> ResidencyPolicy | None:
    """The policy of a device with some, not all, experts; None where nothing can move."""
    if getattr(backend, "device", None) is None:
        return None
    if not 0 < placement.slots.count < placement.model.num_routed_experts:
        return None
    movable, sizes = cast(Movable, backend), placement.model
    gpu = hasattr(backend, "tier")  # promotes from its staging ring for the most part: no link to spare
    policy = ResidencyPolicy(movable, LearnedSet.of(_fingerprint(file, placement)), 0.0 if gpu else link_rate)
    if gpu:  # no slot stays empty: of what is not known to be used every expert is as good as another
        layers = range(len(sizes.expert_bytes))
        movable.fill((layer, e) for e in range(sizes.num_experts) for layer in layers)
    return policy


def _fingerprint(file: ModelFile, placement: Placement) -> str:
    """Tells models apart: their experts, and the file's name and size."""
    sizes = placement.model.expert_bytes
    text = f"{file.nbytes} {sizes} {placement.model.num_experts}"
    return f"{Path(file.path).stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
