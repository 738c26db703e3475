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
