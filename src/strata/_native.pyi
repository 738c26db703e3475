"""Types of the compiled extension; addresses are integers, and the caller keeps the memory alive."""

# bindings/gguf.cpp
def gguf_skip_array(address: int, size: int, at: int, max_depth: int, /) -> tuple[int, int]: ...
def gguf_string_offsets(address: int, size: int, at: int, count: int, out: int, /) -> bool: ...
def gguf_decode_strings(address: int, offsets: int, count: int, /) -> list[str]: ...

# bindings/hardware.cpp
def sum_words(address: int, count: int, /) -> int: ...

# bindings/program.cpp
FAULT_NON_FINITE: int
FAULT_RANGE: int
FAULT_NO_TOKEN: int
FAULT_MEMORY: int

class ThreadPool:
    """Threads, the caller of `Program.run` being the first; worker i is bound to cpus[i] when given."""
    def __init__(self, threads: int, cpus: list[int] = ...) -> None: ...
    @property
    def threads(self) -> int: ...

class Program:
    """Op records replayed in order by one call; keeps the pool alive, not what addresses point to."""
    def __init__(self, pool: ThreadPool) -> None: ...
    def add(self, kind: str, ptrs: list[int], dims: list[int], scalars: list[float]) -> None:
        """Appends a record for the active instruction set; ValueError on an unknown kind or a wrong count."""
    def add_tier(self, record: DiskExperts | DeviceExperts | LookaheadStep | NgramPost | NgramTake) -> None:
        """Appends a tier's record and keeps it alive."""
    def run(self, begin: int, end: int) -> int:
        """Runs records [begin, end) without the GIL; returns fault bits. IndexError on a bad range."""
    def __len__(self) -> int: ...

class Arena:
    """`nbytes` zeroed bytes, page aligned; 2 MiB aligned and huge pages advised when `huge`. MemoryError."""
    def __init__(self, nbytes: int, huge: bool = ...) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def kernel_names() -> list[str]: ...
def isa_level() -> str: ...
def isa_levels() -> list[str]:
    """Instruction sets this processor can run, slowest first."""

def set_isa(level: str) -> None:
    """Chooses the kernels of programs built from now on; ValueError when the processor lacks the level."""

def apply(name: str, source: int, out: int, n: int) -> None:
    """contract.h's exp32, log32, softplus32, sigmoid32, silu32, half_float or float_half over n values."""

def fmaf(a: int, b: int, c: int, out: int, n: int) -> None:
    """C's fmaf over n float32 values of each array."""

# bindings/tiers.cpp
class TierCounters:
    def read(self) -> list[int]:
        """All counters, in the order of `Counter` in strata/tiers.h."""

class ExpertStore:
    """Experts in RAM and on disk. A layer: its planes as (file, offset, stride, bytes), their address tables, experts.

    ValueError when `budget` is too small, MemoryError when memory is refused, OSError when a file cannot be opened.
    """
    def __init__(
        self,
        layers: list[tuple[list[tuple[int, int, int, int]], list[int], int]],
        paths: list[str],
        budget: int,
        lock: bool,
        threads: int,
        depth: int,
        counters: TierCounters,
    ) -> None: ...
    def fill(self) -> int:
        """Begins to read experts into every free slot; returns how many."""
    @property
    def filled(self) -> int: ...
    @property
    def fill_error(self) -> int:
        """errno of the first read that failed, -1 for a file that ends too soon, else 0."""
    def failure(self) -> str:
        """What the last failed read was, once; empty when none failed."""
    def holds(self, layer: int, expert: int) -> bool: ...
    def prefetch(self, layer: int, experts: list[int]) -> None: ...
    def inject(self, fault: int, after: int) -> None:
        """Tests: 0 none, 1 short, 2 error, 3 truncated, 4 hanging, from the `after`-th read on."""
    @property
    def slots(self) -> int: ...
    @property
    def experts(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def locked(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def method(self) -> str:
        """io_uring or threads."""
    @property
    def direct(self) -> bool: ...

def limit_tier_memory(nbytes: int, locked: int) -> None:
    """Tests: larger reservations are refused, and page-locking stops at `locked` bytes."""

Recorded = tuple[str, list[int], list[int]]  # kernel, pointers, dims

class Guesses:
    def __init__(self, layers: int, counters: TierCounters) -> None: ...

class DiskExperts:
    def __init__(
        self,
        pool: ThreadPool,
        store: ExpertStore,
        guesses: Guesses,
        layer: int,
        gate_up: Recorded,
        down: Recorded,
        limit_ns: int,
    ) -> None: ...

class LookaheadStep:
    def __init__(
        self,
        pool: ThreadPool,
        store: ExpertStore,
        guesses: Guesses,
        product: Recorded,
        layer: int,
        experts: int,
        k: int,
        max_rows: int,
    ) -> None: ...

# bindings/tiers_ngram.cpp
class NgramBox:
    """A program's mailbox; lives with its store."""
    @property
    def addresses(self) -> tuple[int, int, int]:
        """Of its head, ids and rows."""

class NgramStore:
    """Rows of a table by id (native/tiers/ngram_store.h); mode 0 RAM, 1 map, 2 direct. OSError, MemoryError."""
    def __init__(
        self,
        path: str,
        offset: int,
        rows: int,
        row_bytes: int,
        mode: int,
        cache_rows: int,
        threads: int,
        limit_ns: int,
        counters: TierCounters,
    ) -> None: ...
    def add_box(self, capacity: int, memory: int = 0) -> NgramBox:
        """`memory`: address of box_bytes zeroed bytes that a device shares; 0: the store's own."""
    def box_bytes(self, capacity: int) -> int: ...
    def expect(self, box: NgramBox) -> None:
        """A device is about to ask once more."""
    def gather(self, box: NgramBox, ids: list[int], out: int) -> bool:
        """Rows of `ids` to the address `out`; False when they cannot be read."""
    def end(self) -> None:
        """Answers nobody any more, before memory that a device shares goes."""
    def failure(self) -> str: ...
    def inject(self, fault: int, after: int) -> None:
        """Tests: as of ExpertStore, without hanging."""
    @property
    def method(self) -> str: ...
    @property
    def direct(self) -> bool: ...
    @property
    def limit_ns(self) -> int: ...
    @property
    def address(self) -> int:
        """Of the rows in RAM; 0 where they are not."""
    @property
    def nbytes(self) -> int: ...

class NgramPost:
    def __init__(self, store: NgramStore, box: NgramBox, live: int, ids: int, heads: int) -> None: ...

class NgramTake:
    def __init__(self, store: NgramStore, box: NgramBox, record: Recorded) -> None: ...

# bindings/tiers_sim.cpp
class PolicyDevice:
    """A device whose experts change places (native/tiers/slot_table.h)."""
    def promote(self, layer: int, expert: int, slot: int) -> bool: ...
    def replace(self, layer: int, expert: int, slot: int) -> bool: ...
    def retire(self, layer: int, expert: int) -> bool: ...
    def slot_of(self, layer: int, expert: int) -> int: ...
    def slots(self) -> list[tuple[int, int, int, int]]:
        """Bytes, state (free, arriving, resident, leaving), layer and expert of each slot."""
    @property
    def moving(self) -> int:
        """Slots whose bytes are on their way."""

class SimDevice(PolicyDevice):
    """A pretended GPU (native/tiers/sim_device.h). MemoryError when its arenas are refused."""
    def __init__(
        self,
        store: ExpertStore,
        slots: list[int],
        staging: int,
        link_rate: float,
        cpu_share: float,
        workers: int,
        exclusive: bool,
        limit_ns: int,
        rows: int,
        k: int,
        hidden: int,
        inner: int,
        experts: int,
    ) -> None: ...
    def run(self, program: Program, begin: int, end: int) -> int:
        """One replay on the device's thread; returns fault bits."""
    def set_costs(self, costs: list[float]) -> None:
        """Nanoseconds: link, CPU, CPU a row, RAM, each a byte; a post."""
    def split_report(self) -> tuple[int, int, int, float, float]:
        """Split, copying and guarded steps; nanoseconds a missed byte, split and copied."""
    def inject_worker(self, fault: int, after: int) -> None:
        """Tests: 0 none, 1 stall, 2 die, at the `after`-th unit from now on."""
    def inject_link(self, fault: int) -> None:
        """Tests: 0 none, 1 stall."""
    @property
    def workers(self) -> int: ...

class GpuDevice(PolicyDevice):
    """The host's side of experts on a GPU (native/tiers/gpu_device.h); `mapped`: page-locked memory, zeroed."""
    def __init__(
        self,
        store: ExpertStore,
        slots: list[tuple[int, int]],
        rows: int,
        k: int,
        hidden: int,
        inner: int,
        experts: int,
        workers: int,
        limit_ns: int,
        mapped: int,
        faults: int,
        apart: bool = False,
    ) -> None:
        """`apart`: what workers compute is no part of steps, and not counted with them."""
    def image(self, addresses: list[int], place_bytes: int, places: int) -> bytes:
        """The device's ExpertTier; device addresses of its parts in order."""
    def set_layer(
        self,
        layer: int,
        gate_up: tuple[str, list[int], list[int]],
        down: tuple[str, list[int], list[int]],
    ) -> None:
        """Op records from which the workers take types and sizes."""
    def set_costs(self, costs: list[float]) -> None:
        """Nanoseconds: link, CPU, CPU a row, RAM, each a byte; a post."""
    def set_share(self, share: float) -> None: ...
    def set_link(self, ns_byte: float) -> None: ...
    def set_ahead(self, most: int) -> None: ...
    def set_limit(self, ns: int) -> None: ...
    def lend(self, slots: list[int]) -> int:
        """Nothing comes into these slots any more, what is in them leaves; how many the device has yet to empty."""
    def give_back(self) -> None:
        """No slot is lent."""
    def reading(self, first: int, count: int) -> None:
        """Layers whose experts a prompt chunk reads now or soon: the policy leaves them where they are."""
    def count(self) -> None:
        """Brings the store's counters up to date."""
    @property
    def missed(self) -> int:
        """Experts that steps did not find in VRAM so far."""
    def close(self) -> None:
        """Ends the workers, before mapped memory goes."""
    def started(self) -> int:
        """A replay is started; its number."""
    def finished(self, number: int) -> None:
        """That replay and those before it are over."""
    def inject_worker(self, fault: int, after: int) -> None:
        """Tests: 0 none, 1 stall, 2 die, at the `after`-th unit from now on."""
    @property
    def workers(self) -> int: ...
    @property
    def computed_apart(self) -> tuple[int, int]:
        """Experts that the workers have computed outside of steps, and their bytes."""

def gpu_tier_sizes(rows: int, k: int, hidden: int, experts: int) -> tuple[int, int, int]:
    """Bytes of mapped memory, of the device's state, of its ExpertTier."""

def try_out(which: int, with_ns: list[int], without_ns: list[int]) -> list[bool]:
    """Whether each step does without what is tried out, by what steps would take either way."""

def expert_plane_offsets(store: ExpertStore) -> list[list[int]]:
    """By layer: of gate, up and down in a slot, and the bytes of all."""

class DeviceExperts:
    def __init__(
        self,
        pool: ThreadPool,
        device: SimDevice,
        guesses: Guesses,
        layer: int,
        gate_up: Recorded,
        down: Recorded,
    ) -> None: ...

def split_misses(misses: int, nbytes: int, rows: float, costs: list[float]) -> int:
    """How many of equal misses to copy (tiers.h)."""

# bindings/text.cpp
class BytePairs:
    """Merges of byte-level BPE; ValueError on a repeated token or a merge that is not two tokens and a space.

    alphabet: how tokens write each of the 256 bytes; apart: ids that merges never make; whole_first: a piece that
    is a token is not merged.
    """
    def __init__(
        self,
        tokens: list[str],
        merges: list[str],
        alphabet: list[str],
        apart: list[int],
        whole_first: bool,
        /,
    ) -> None: ...
    def encode(self, pieces: list[str], /) -> list[int]: ...

class SentencePiece:
    """Merges by score; ValueError on a repeated token. Byte ids (256) and the unknown id are -1 where there is none."""
    def __init__(
        self,
        tokens: list[str],
        scores: list[float],
        apart: list[int],
        byte_ids: list[int],
        unknown_id: int,
        /,
    ) -> None: ...
    def encode(self, text: str, /) -> list[int]:
        """Ids of text whose spaces are written U+2581. Without the GIL."""

class Policy:
    """The residency policy's thread beside a device (native/tiers/policy.h)."""
    def __init__(self, device: PolicyDevice, link_rate: float, gain: float) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def state(self) -> tuple[list[int], list[float], list[float], list[float]]:
        """Ages (-1: never used) and counts by expert; uses and sightings by cell."""
    def restore(self, state: tuple[list[int], list[float], list[float], list[float]], most: int) -> list[int]:
        """ValueError for another model's; experts of the best scores, best first. Before `start`."""
    @property
    def steps(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def skipped(self) -> int: ...

class PolicyReplay:
    """A routing trace against the policy (native/tiers/replay.h); `quota`: bytes a step may move, 0: any."""
    def __init__(self, nbytes: list[int], slots: list[int], quota: int, gain: float) -> None: ...
    def step(self, used: list[int]) -> tuple[int, int, int, int]:
        """Hits, their bytes, experts moved, their bytes."""
