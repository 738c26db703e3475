"""Memory and replay of the pretended GPU: programs run on its thread, experts go through slots, link and mailbox."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strata import _native
from strata.backends.cpu.backend import CpuBackend
from strata.backends.cpu.lower import Addresses, Record
from strata.backends.cpu.tiers import ExpertTiers, TierLowering, Tiers
from strata.ops.experts import ExpertGateUp
from strata.ops.program import Program

MAILBOX_ROWS = 64  # a list of more is copied instead


@dataclass(frozen=True)
class SimOptions:
    """What the device is taken to have. `slots`: bytes of its expert slots; `link_rate`: bytes a second, 0: as memory;
    `cpu_share`: of misses, negative: by measured costs; `exclusive`: experts in VRAM leave RAM first."""

    slots: tuple[int, ...] = ()
    staging: int = 4
    link_rate: float = 0.0
    cpu_share: float = -1.0
    workers: int = 1
    exclusive: bool = False


class SimBackend(CpuBackend):
    """The CPU's kernels and memory stand for the device's own."""

    name = "sim"

    def __init__(self, threads: int, isa: str, tiers: Tiers, options: SimOptions):
        super().__init__(threads, isa, tiers=tiers)
        assert tiers.experts is not None, "sim is for models with routed experts"
        self._experts, self._options, self._all_tiers = tiers.experts, options, tiers
        self._device: _native.SimDevice | None = None

    @property
    def device(self) -> _native.SimDevice:
        """The native device; there once a program with experts is lowered."""
        assert self._device is not None, "no program with experts is lowered yet"
        return self._device

    @property
    def num_experts(self) -> int:
        """Experts of a layer."""
        return max(gate.shape[0] for gate in self._experts.layers)

    def fill(self, experts: Iterable[tuple[int, int]]) -> int:
        """Promotes (layer, expert) in turn into the first free slot that holds them, and waits; returns how many."""
        free = {i: size for i, (size, state, _, _) in enumerate(self.device.slots()) if state == 0}
        sizes = self._experts.blob_bytes
        count = 0
        for layer, expert in experts:
            slot = min((i for i in free if free[i] >= sizes[layer]), key=lambda i: free[i], default=None)
            if slot is not None and self.device.promote(layer, expert, slot):
                free.pop(slot)
                count += 1
        while self.device.moving:
            time.sleep(0.001)
        return count

    def _tier_lowering(self, program: Program, at: Addresses) -> TierLowering | None:
        op = next((op for op in program.ops if isinstance(op, ExpertGateUp)), None)
        if op is None:
            return super()._tier_lowering(program, at)
        if self._device is None:
            self._device = self._make_device(op.k)
        return SimLowering(self._all_tiers, self._pool, program, at, self._device)

    def _make_device(self, k: int) -> _native.SimDevice:
        o, gates = self._options, list(self._experts.layers)
        return _native.SimDevice(
            self._experts.store,
            list(o.slots),
            o.staging,
            o.link_rate,
            o.cpu_share,
            o.workers,
            o.exclusive,
            self._experts.wait_limit_ns,
            MAILBOX_ROWS,
            k,
            max(gate.shape[2] for gate in gates),
            max(gate.shape[1] for gate in gates),
            max(gate.shape[0] for gate in gates),
        )

    def _runner(self, native: _native.Program) -> Callable[[int, int], int]:
        def run(begin: int, end: int) -> int:
            return native.run(begin, end) if self._device is None else self._device.run(native, begin, end)

        return run


class SimLowering(TierLowering):
    """Routed experts become the device's records."""

    def __init__(
        self,
        tiers: Tiers,
        pool: _native.ThreadPool,
        program: Program,
        at: Addresses,
        device: _native.SimDevice,
    ):
        super().__init__(tiers, pool, program, at)
        self._device = device

    def _moved(self) -> bool:
        return True

    def _expert_record(self, experts: ExpertTiers, gate_up: Record, down: Record) -> _native.DeviceExperts:
        return _native.DeviceExperts(
            self._pool, self._device, self._guesses, self._layer, gate_up[:3], down[:3]
        )


def deal_slots(tiers: ExpertTiers, count: int) -> tuple[int, ...]:
    """Sizes of `count` expert slots, dealt to the layers in turn."""
    return tuple(tiers.blob_bytes[i % len(tiers.blob_bytes)] for i in range(count))
