"""A planted model with gain, and runners over it with any tiers: what a hash of logits must not depend on."""

import hashlib
import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np

from strata import models
from strata.backends.cpu import CpuBackend
from strata.backends.cpu.tiers import Tiers
from strata.backends.sim import SimBackend, SimOptions, deal_slots
from strata.engine.pieces import Cutter
from strata.engine.programs import Limits
from strata.engine.runner import Runner
from strata.engine.teacher import Teacher
from strata.gguf import open_model
from strata.memory import StatePool
from strata.memory.counters import read_counters
from strata.memory.expert_store import ExpertStore, StoreOptions, expert_layers
from strata.memory.file_places import Copies
from strata.memory.ngram_store import NgramOptions, ngram_tables, open_table
from strata.synth import PlantedOptions, tiny_geometry, write_planted

TOKENS = 72  # a chunk of 64 and a tail in the step form
CONTEXT = 192
ROWS = 64
EXPERTS = 16

GEOMETRY = replace(
    tiny_geometry("qwen4exp"),
    num_layers=5,
    hidden_size=128,
    num_experts=EXPERTS,
    num_experts_per_tok=4,
    moe_intermediate_size=96,
    shared_intermediate_size=64,
)


def write_model(path):
    """A file whose experts are a third of it; planes of three types, so that sizes are odd."""
    types = {"gate": "Q4_K", "up": "Q8_0", "down": "Q5_0"}
    write_planted(path, PlantedOptions(GEOMETRY, types=types, topics=8, gain=None), 2)
    return path


@dataclass
class Rig:
    """A runner, what its tiers are, and the tokens that are read."""

    runner: Runner
    store: ExpertStore | None = None
    backend: object = None
    ngram: list = field(default_factory=list)
    tokens: list = field(default_factory=list)

    def __post_init__(self):
        self.teacher = Teacher(self.runner)

    def read(self, form, position, tokens, wanted):
        """Computes and commits tokens of the only sequence; logits of the wanted rows, in one piece."""
        pieces = list(self.teacher.read(form, position, tokens, wanted))
        return np.concatenate(pieces) if pieces else None

    def step(self, position):
        """Logits after one token in the step form."""
        return self.read("step", position, [self.tokens[position]], range(1))[0]

    def digest(self, rows=(1, 3)):
        """A prompt in both forms, then steps of `rows` rows each: SHA-256 of every row's logits."""
        found = hashlib.sha256()
        for piece in self.pieces(rows):
            found.update(piece.tobytes())
        return found.hexdigest()

    def pieces(self, rows=(1, 3)):
        yield from self.teacher.logits(self.tokens, Cutter(ROWS))
        for count in rows:
            for at in range(0, 12, count):
                part = self.tokens[at : at + count]
                yield self.read("step", at, part, range(len(part)))
            self.runner.pages.free(0)

    def counts(self):
        return read_counters(self.store.counters)


def rig(path, *, budget=None, sim=None, resident=0.0, ngram=None, wait=20.0, threads=2, **store):
    """`budget`: bytes of experts in RAM, 0 all, None: mapped. `sim`: options of the device, with `resident` of the
    experts in its slots. `ngram`: options of the table's store."""
    file = open_model(path)
    model = models.load(file)
    experts = tiers = None
    if budget is not None:
        options = StoreOptions(budget=budget, wait_seconds=wait, **store)
        experts = ExpertStore(expert_layers(model), [file], options)
        experts.load()
    tables = {}
    if ngram is not None:
        counters = experts.counters if experts else None
        tables = {t: open_table(t, [file], ngram, counters) for t in ngram_tables(model)}
    if experts is not None:
        tiers = Tiers(experts.tiers, tables, Copies([file]))
    backend = _backend(tiers, sim, resident, threads)
    state = StatePool.create(model.state_shape(), CONTEXT // 64, 1, "f16")
    runner = Runner(model, backend, state, Limits(CONTEXT, 1, ROWS))
    if sim is not None and resident:
        layers = range(len(experts.layers))
        backend.fill((layer, expert) for expert in range(EXPERTS) for layer in layers)
    cycle = np.load(f"{path}.cycle.npy")
    return Rig(runner, experts, backend, list(tables.values()), [int(t) for t in np.resize(cycle, TOKENS)])


def _backend(tiers, sim, resident, threads):
    if sim is None:
        return CpuBackend(threads, tiers=tiers)
    slots = deal_slots(tiers.experts, round(resident * tiers.experts.store.experts))
    return SimBackend(threads, "auto", tiers, SimOptions(slots=slots, **sim))


class Swapper(threading.Thread):
    """Promotes, replaces where a device can, and retires at random while steps run, as a policy may."""

    def __init__(self, device, layers, seed=1, experts=EXPERTS):
        super().__init__(daemon=True)
        self._device, self._layers, self._random = device, layers, np.random.default_rng(seed)
        self._experts = experts
        self._over = threading.Event()
        self.done = self.replaced = 0

    def run(self):
        while not self._over.is_set():
            slots = self._device.slots()
            slot = int(self._random.integers(len(slots)))
            _, state, layer, expert = slots[slot]
            new = int(self._random.integers(self._layers)), int(self._random.integers(self._experts))
            if state == 0:
                self.done += self._device.promote(*new, slot)
            elif self._random.random() < 0.5:
                self.replaced += self._device.replace(*new, slot)
            elif self._random.random() < 0.7:
                self.done += self._device.retire(layer, expert)
            time.sleep(0.0002)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self.join()


__all__ = ["EXPERTS", "NgramOptions", "Rig", "Swapper", "rig", "write_model"]
