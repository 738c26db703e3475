"""CPU workers behind a mailbox of a GPU's tiers: what they are told of layers, and when they may sleep."""

from strata import _native
from strata.backends.cpu.lower import Addresses
from strata.backends.cpu.lower import lower as lower_for_cpu
from strata.ops.experts import ExpertDown, ExpertGateUp

_SOMEWHERE = 64  # workers read rows and experts from places of their own; only "none" counts


class MailboxWorkers:
    """Of one native device. Replays have numbers in the order in which they are started, whoever serves them."""

    def __init__(self, device: _native.GpuDevice):
        self.device = device
        self._known: set[int] = set()  # layers whose types and sizes they have
        self._last = 0, 0  # the newest replay that posts to them, and what the device calls it

    def bind(self, layer: int, gate_up: ExpertGateUp, down: ExpertDown) -> None:
        """Tells a layer's types and sizes."""
        if layer in self._known:
            return
        self._known.add(layer)
        at = Addresses(
            lambda _: _SOMEWHERE,
            lambda _: (_SOMEWHERE,) * 3,
            lambda w: w.data.ctypes.data,
            lambda _: _SOMEWHERE,
        )
        self.device.set_layer(layer, lower_for_cpu(gate_up, at)[:3], lower_for_cpu(down, at)[:3])

    def start(self, replay: int) -> None:
        """The replay of that number, which may post, is started: they poll."""
        self._last = replay, self.device.started()

    def over(self, replay: int) -> None:
        """That replay and all before it are over: they sleep where none is left that posts."""
        if self._last[0] <= replay:
            self.device.finished(self._last[1])
