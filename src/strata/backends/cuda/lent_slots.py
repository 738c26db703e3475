"""Expert slots that lend their memory to a prompt chunk's scratch, and get experts back afterwards.

Scratch takes the end of the slots' memory. Their experts leave before a chunk begins, and nobody brings others there
until chunks are over. Then those experts come that the prompt used most, so that decoding begins warm; they are copied
by the steps that follow, some in each.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from strata import _native

AT_ONCE = 192  # experts that a step brings back: 7 ms of a fast link
_FREE = 0  # SlotState of native/include/strata/tiers.h


class LentSlots:
    """Of an ExpertTier: `slots` are address and bytes of each, in one piece of memory."""

    def __init__(
        self, device: _native.GpuDevice, slots: Sequence[tuple[int, int]], blob_bytes: Sequence[int]
    ):
        self._device, self._slots = device, slots
        self._blob_bytes = np.array(blob_bytes, np.int64)
        self.begin = min((at for at, _ in slots), default=0)
        self.end = max((at + size for at, size in slots), default=0)
        self.lent: list[int] = []  # numbers of slots
        self._asked = 0  # bytes
        self._empty = True
        self._held: list[tuple[int, int]] = []  # (layer, expert) that were in them
        self._waiting = deque[tuple[int, int]]()  # that are to come into
        self._returned: list[int] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.end - self.begin

    def ask(self, nbytes: int) -> bool:
        """Asks for the slots that the last so many bytes touch; whether all are empty. Steps empty them."""
        if nbytes > self._asked:
            first, states, known = self.end - nbytes, self._device.slots(), set(self.lent)
            wanted = [i for i, (at, size) in enumerate(self._slots) if at + size > first]
            self._held += [states[i][2:] for i in wanted if i not in known and states[i][2] >= 0]
            self._held += self._waiting
            self._waiting.clear()
            self.lent, self._asked, self._empty = wanted, nbytes, False
        if not self._empty:
            self._empty = not self._device.lend(self.lent)
        return self._empty

    def lend(self, nbytes: int, settle: Callable[[], None]) -> None:
        """The same at once; `settle` applies what was asked for."""
        while not self.ask(nbytes):
            settle()

    def give_back(self, used: NDArray[np.uint32]) -> None:
        """The slots are free again. Those experts are to come into them that have the most pairs in `used` [layers,
        experts], then those that were there before; `refill` asks for them."""
        self._device.give_back()
        experts = used.shape[1]
        order = np.argsort(-used.reshape(-1).astype(np.int64), kind="stable")
        count = int(np.count_nonzero(used))
        ranked = [(int(e) // experts, int(e) % experts) for e in order[:count]]
        self._waiting = deque([*ranked, *self._held])
        self._returned = self.lent
        self.lent, self._asked, self._empty, self._held = [], 0, True, []

    @property
    def refilling(self) -> bool:
        """Whether `refill` has more to ask for."""
        return bool(self._waiting)

    def refill(self) -> None:
        """Asks for some of the experts that are to come, into slots that nobody has taken since. They are copied before
        a step's first layer, which waits for all of them."""
        states, free, asked = self._device.slots(), dict[int, list[int]](), 0
        for i in self._returned:
            if states[i][1] == _FREE:
                free.setdefault(states[i][0], []).append(i)
        while self._waiting and free and asked < AT_ONCE:
            layer, expert = self._waiting.popleft()
            wanted = int(self._blob_bytes[layer])
            size = min((s for s in free if s >= wanted), default=0)
            if size and self._device.promote(layer, expert, free[size][-1]):
                asked += 1
                free[size].pop()
                if not free[size]:
                    del free[size]
        if not free:
            self._waiting.clear()


def lay_out(begin: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Address and bytes of slots from `begin` on; sizes take turns, so that any part of the memory has some of each."""
    found: dict[int, tuple[int, int]] = {}
    for i in _in_turn(sizes):
        found[i] = begin, sizes[i]
        begin += sizes[i]
    return [found[i] for i in range(len(sizes))]


def _in_turn(sizes: Sequence[int]) -> list[int]:
    """Places of the list so that the first part of the result, of any length, has of each size about the same share."""
    seen, of = Counter[int](), Counter(sizes)
    shares = []
    for i, size in enumerate(sizes):
        shares.append((seen[size] / of[size], i))
        seen[size] += 1
    return [i for _, i in sorted(shares)]
