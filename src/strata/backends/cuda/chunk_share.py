"""CPU workers that take some of the experts that a narrow prompt chunk lacks (kernels/chunk_share.cu,
docs/cuda-prompts.md). Mailbox, workers, posts and faults are the chunks' own: steps run between a chunk's layers, and
post to theirs."""

from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.backends.cpu.tiers import ExpertTiers
from strata.backends.cuda.driver import Arg, Driver, Launch
from strata.backends.cuda.lower import Context, ints, launch, pointer
from strata.backends.cuda.workers import MailboxWorkers
from strata.ops.experts import ExpertDown, ExpertGateUp

if TYPE_CHECKING:
    from strata.backends.cuda.tier import ExpertTier

SHARED_ROWS = 256  # of a chunk, up to which the CPU may be faster than the link for some expert
_THREADS = 512
_TAKERS = 64  # thread blocks that wait for items, each for its own


class ChunkShare:
    """Of an ExpertTier; `faults`: address of the chunks' fault words; `share`: of what a layer lacks, negative: by
    costs."""

    def __init__(
        self, driver: Driver, tier: "ExpertTier", experts: ExpertTiers, sizes: tuple[int, int, int, int],
        workers: int, share: float, faults: int,
    ):  # fmt: skip
        self._tier = tier
        k, hidden, inner, count = sizes
        mapped, state, _ = _native.gpu_tier_sizes(SHARED_ROWS, k, hidden, count)
        self._mapped = driver.allocate_host(mapped)
        self.device = _native.GpuDevice(
            experts.store, [], SHARED_ROWS, k, hidden, inner, count, workers, experts.wait_limit_ns,
            self._mapped.address, faults, apart=True,
        )  # fmt: skip
        self.device.set_share(share)
        self.workers = MailboxWorkers(self.device)
        addresses = [0] * 9 + [driver.allocate(state)]
        image = np.frombuffer(self.device.image(addresses, 0, 1), np.uint8)
        self._mine, self._sent = driver.allocate(image.nbytes), driver.allocate(4)
        driver.upload(self._mine, image)

    @property
    def counts(self) -> dict[str, int]:
        """What the workers have computed of prompts."""
        experts, nbytes = self.device.computed_apart
        return {"prompt_cpu_experts": experts, "prompt_cpu_bytes": nbytes}

    def divide(self, at: Context, op: ExpertGateUp, ring: int, first: bool) -> Launch:
        """A node after the list of a layer's absent experts: some go to the workers. `first`: it begins a chunk."""
        layer, rows = self._tier.layer(op.gate), op.x or op.q8
        assert rows is not None
        q8 = [pointer(0)] * 3 if op.q8 is None else at.q8(op.q8)
        args: list[Arg] = [at.live(rows), *at.at(op.pairs, op.offsets), *q8, *at.at(op.x)]
        args += [*ints(op.gate.shape[2]), self._tier.address, *self._addresses(ring)]
        args += [*ints(layer, int(first)), pointer(self._sent)]
        grid = min(at.properties.multiprocessors, at.bucket)
        return launch("chunk_share.cu", "share_absent", grid, _THREADS, args, macros=self._macros)

    def take(self, at: Context, op: ExpertDown, ring: int) -> Launch:
        """A node after a layer's down product: the workers' rows to the op's own."""
        args: list[Arg] = [
            *at.at(op.pairs, op.offsets, op.out),
            *ints(op.weight.shape[1]),
            *self._addresses(ring),
        ]
        args += [*ints(self._tier.layer_of(op.weight)), pointer(at.faults)]
        return launch("chunk_share.cu", "take_computed", _TAKERS, _THREADS, args, macros=self._macros)

    def _addresses(self, ring: int) -> list[Arg]:
        return [pointer(self._mine), pointer(ring)]

    @property
    def _macros(self) -> list[tuple[str, str | int]]:
        return [("STRATA_EXPERTS", self._tier.num_experts)]
