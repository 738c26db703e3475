"""Cache policies against a routing trace: LRU, LFU, the engine's own, and one that knows the future."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from strata import _native
from strata.engine.residency import GAIN
from strata.memory.route_trace import RouteTrace
from strata.memory.slots import fill_slots, size_classes

NEVER = 1 << 60


@dataclass(frozen=True)
class Tally:
    """What one policy did: experts that steps asked for, those that were there, bytes brought in."""

    asked: int
    hits: int
    moved_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of the experts asked for that were there."""
        return self.hits / self.asked if self.asked else 0.0


@dataclass(frozen=True)
class CacheReport:
    """One cache size; the clairvoyant one gives the most hits that any policy could have."""

    share: float
    nbytes: int
    lru: Tally
    lfu: Tally
    ours: Tally
    clairvoyant: Tally

    @property
    def gap_closed(self) -> float:
        """Share of the way from LRU to the clairvoyant that ours covers."""
        gap = self.clairvoyant.hits - self.lru.hits
        return (self.ours.hits - self.lru.hits) / gap if gap else 1.0


class Reuses:
    """The steps of a trace with each expert's next use."""

    def __init__(self, trace: RouteTrace, rows: int):
        self.steps: list[list[int]] = [s.tolist() for s in trace.steps(rows)]
        bytes_of = [n for n in trace.header.expert_bytes for _ in range(trace.header.num_experts)]
        self.nbytes: list[int] = bytes_of
        self.asked = sum(map(len, self.steps))
        self.next: list[list[int]] = []
        coming: dict[int, int] = {}
        for i in range(len(self.steps) - 1, -1, -1):
            self.next.append([coming.get(e, NEVER) for e in self.steps[i]])
            coming.update(dict.fromkeys(self.steps[i], i))
        self.next.reverse()


def measure_caches(
    trace: RouteTrace, shares: Sequence[float], rows: int, quota: int = 0
) -> Iterator[CacheReport]:
    """A report for each cache of `shares` of the experts' bytes; `rows` rows make a step; `quota`: bytes that ours may
    move a step, 0: any."""
    uses, header = Reuses(trace, rows), trace.header
    classes = size_classes(header.expert_bytes, header.num_experts)
    for share in shares:
        budget = int(share * sum(uses.nbytes))
        slots = fill_slots(classes, budget).sizes()
        yield CacheReport(
            share,
            budget,
            lru(uses, budget),
            lfu(uses, budget),
            ours(uses, slots, quota),
            clairvoyant(uses, budget),
        )


def lru(uses: Reuses, budget: int) -> Tally:
    """Every miss comes in; those not used for longest go."""
    held: OrderedDict[int, None] = OrderedDict()
    free, hits, moved = budget, 0, 0
    for step in uses.steps:
        for e in step:
            if e in held:
                hits += 1
                held.move_to_end(e)
                continue
            while free < uses.nbytes[e] and held:
                free += uses.nbytes[held.popitem(last=False)[0]]
            if free >= uses.nbytes[e]:
                held[e], free, moved = None, free - uses.nbytes[e], moved + uses.nbytes[e]
    return Tally(uses.asked, hits, moved)


def lfu(uses: Reuses, budget: int) -> Tally:
    """Every miss comes in; the least often used so far go, the older first."""
    counts: dict[int, int] = {}

    def rank(e: int, step: int) -> tuple[int, int]:
        return counts[e], step

    def count(e: int) -> None:
        counts[e] = counts.get(e, 0) + 1

    return _evict_least(uses, budget, rank, count)


def _evict_least(
    uses: Reuses, budget: int, rank: Callable[[int, int], tuple[int, int]], count: Callable[[int], None]
) -> Tally:
    held: dict[int, tuple[int, int]] = {}
    heap: list[tuple[tuple[int, int], int]] = []
    free, hits, moved = budget, 0, 0
    for i, step in enumerate(uses.steps):
        for e in step:
            count(e)
            if e in held:
                hits += 1
            else:
                while free < uses.nbytes[e] and held:
                    key, least = heapq.heappop(heap)
                    if held.get(least) == key:
                        del held[least]
                        free += uses.nbytes[least]
                if free < uses.nbytes[e]:
                    continue
                free, moved = free - uses.nbytes[e], moved + uses.nbytes[e]
            held[e] = rank(e, i)
            heapq.heappush(heap, (held[e], e))
    return Tally(uses.asked, hits, moved)


def clairvoyant(uses: Reuses, budget: int) -> Tally:
    """Those used again last go, or stay out (Belady 1966; with experts of one size no policy has more hits)."""
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    free, hits, moved = budget, 0, 0
    for step, following in zip(uses.steps, uses.next, strict=True):
        for e, after in zip(step, following, strict=True):
            if e in held:
                hits += 1
            elif not (free := _make_room(uses, held, heap, free, e, after)) >= uses.nbytes[e]:
                continue
            else:
                free, moved = free - uses.nbytes[e], moved + uses.nbytes[e]
            held[e] = after
            heapq.heappush(heap, (-after, e))
    return Tally(uses.asked, hits, moved)


def _make_room(
    uses: Reuses, held: dict[int, int], heap: list[tuple[int, int]], free: int, e: int, after: int
) -> int:
    """Free bytes after those used later than `after` have gone, as far as needed."""
    while free < uses.nbytes[e] and heap:
        late, last = heap[0]
        if held.get(last) != -late:
            heapq.heappop(heap)
        elif -late <= after:
            break
        else:
            heapq.heappop(heap)
            del held[last]
            free += uses.nbytes[last]
    return free


def ours(uses: Reuses, slots: Sequence[int], quota: int) -> Tally:
    """The engine's policy (native/tiers/reuse.h, choose.h): what a step misses comes in where that is a gain."""
    replay = _native.PolicyReplay(uses.nbytes, list(slots), quota, GAIN)
    hits = moved = 0
    for step in uses.steps:
        hit, _, _, nbytes = replay.step(step)
        hits, moved = hits + hit, moved + nbytes
    return Tally(uses.asked, hits, moved)
