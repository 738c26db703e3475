"""Expert slots of VRAM: how many of which size. A slot holds any expert that is no larger."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SLOT_ALIGNMENT = 256  # bytes; what a GPU's widest loads and copies want


@dataclass(frozen=True)
class SizeClass:
    """Experts of one size."""

    nbytes: int  # of a slot: the expert's, aligned
    count: int


@dataclass(frozen=True)
class ExpertSlots:
    """Slots by size, largest first."""

    classes: tuple[SizeClass, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(c.nbytes * c.count for c in self.classes)

    @property
    def count(self) -> int:
        """Number of slots."""
        return sum(c.count for c in self.classes)

    def sizes(self) -> list[int]:
        """Bytes of every slot, largest first."""
        return [c.nbytes for c in self.classes for _ in range(c.count)]


def aligned(nbytes: int) -> int:
    """Bytes of the slot of an expert."""
    return -(-nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def size_classes(expert_bytes: Sequence[int], num_experts: int) -> tuple[SizeClass, ...]:
    """Slot sizes of experts of these sizes by layer, with how many experts have each; largest first."""
    found = Counter(aligned(n) for n in expert_bytes)
    return tuple(SizeClass(size, found[size] * num_experts) for size in sorted(found, reverse=True))


def all_slots(classes: Sequence[SizeClass]) -> ExpertSlots:
    """A slot for every expert."""
    return ExpertSlots(tuple(classes))


def fill_slots(classes: Sequence[SizeClass], budget: int) -> ExpertSlots:
    """As many slots as `budget` bytes hold, each size in proportion to its experts; what is left goes to the largest
    that fit."""
    total = all_slots(classes).nbytes
    if total <= budget:
        return all_slots(classes)
    counts = [c.count * budget // total for c in classes]
    left = budget - sum(n * c.nbytes for n, c in zip(counts, classes, strict=True))
    for i, c in enumerate(classes):
        more = min(left // c.nbytes, c.count - counts[i])
        counts[i] += more
        left -= more * c.nbytes
    return _slots(classes, counts)


def count_slots(classes: Sequence[SizeClass], wanted: int) -> ExpertSlots:
    """`wanted` slots, each size in proportion to its experts; the remainder to the largest."""
    experts = sum(c.count for c in classes)
    if wanted >= experts:
        return all_slots(classes)
    counts = [c.count * wanted // experts for c in classes]
    left = wanted - sum(counts)
    for i, c in enumerate(classes):
        more = min(left, c.count - counts[i])
        counts[i], left = counts[i] + more, left - more
    return _slots(classes, counts)


def _slots(classes: Sequence[SizeClass], counts: Sequence[int]) -> ExpertSlots:
    return ExpertSlots(tuple(SizeClass(c.nbytes, n) for c, n in zip(classes, counts, strict=True)))
