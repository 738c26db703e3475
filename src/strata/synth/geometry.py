"""Sizes of a model to make up: one record for all families, with tiny presets and the full-size one."""

from dataclasses import dataclass, fields, replace
from itertools import count, islice
from math import isqrt

from strata.errors import UsageError

ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp")
PLAIN = ("llama", "qwen3", "qwen3moe")
HYBRID = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")
ROUTED = ("qwen3moe", "qwen35moe", "qwen3next", "qwen4exp")
# Hash multipliers of the published model (MODEL_SPEC, section 1); they serve any smaller vocabulary too.
MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)


@dataclass(frozen=True)
class Geometry:
    """Counts and widths; those that an architecture has no use for are ignored."""

    arch: str
    num_layers: int = 4
    hidden_size: int = 64
    vocab_size: int = 256
    max_position: int = 4096
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    rotary_dim: int = 8
    rope_theta: float = 1e7
    rope_sections: tuple[int, ...] = (2, 1, 1, 0)
    rms_eps: float = 1e-6
    intermediate_size: int = 128
    num_experts: int = 8
    num_experts_per_tok: int = 3
    moe_intermediate_size: int = 32
    shared_intermediate_size: int = 32
    interval: int = 4
    key_heads: int = 2
    value_heads: int = 6
    state_dim: int = 16
    conv_kernel: int = 4
    num_streams: int = 4
    stream_rank: int = 8
    index_heads: int = 2
    index_dim: int = 32
    index_budget: int = 8
    index_ratio: int = 4
    ngram_layer: int | None = 1
    heads_per_ngram: int = 4
    ngram_width: int = 32
    ngram_base: int = 101
    ngram_eos: int = 250
    image_token: int | None = None
    eos: int = 251
    bos: int = 250
    draft: bool = False

    @property
    def num_blocks(self) -> int:
        """Blocks in the file: layers, and the draft layer."""
        return self.num_layers + self.draft

    @property
    def ngram_sizes(self) -> list[int]:
        """Rows of each head of the n-gram table."""
        return consecutive_primes(self.ngram_base, 2 * self.heads_per_ngram)

    @property
    def ngram_rows(self) -> int:
        """Rows of the n-gram table, padded to 128."""
        return -(-sum(self.ngram_sizes) // 128) * 128

    @property
    def ngram_inputs(self) -> int:
        """Width of one token's rows together."""
        return 2 * self.heads_per_ngram * self.ngram_width

    @property
    def delta_channels(self) -> int:
        """Channels of the delta rule's convolution: queries, keys, values."""
        return (2 * self.key_heads + self.value_heads) * self.state_dim

    def is_attention(self, layer_idx: int) -> bool:
        """Whether a block has attention rather than the delta rule; the draft layer always has."""
        hybrid = self.arch in HYBRID and layer_idx < self.num_layers
        return not hybrid or (layer_idx + 1) % self.interval == 0

    def checked(self) -> "Geometry":
        """Itself; UsageError where sizes do not fit each other."""
        if self.arch not in ARCHITECTURES:
            raise UsageError(f"architecture {self.arch!r}; it must be one of {', '.join(ARCHITECTURES)}")
        for name in SIZES:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads or self.value_heads % self.key_heads:
            raise UsageError(
                f"{self.num_heads} heads over {self.num_kv_heads}, {self.value_heads} value heads over "
                f"{self.key_heads} key heads: both ratios must be whole"
            )
        if self.arch in ROUTED and not 0 < self.num_experts_per_tok <= self.num_experts:
            raise UsageError(f"{self.num_experts_per_tok} experts a token of {self.num_experts}")
        ngram = self.ngram_layer if self.arch == "qwen4exp" else None
        if ngram is not None and (ngram >= self.num_layers or self.is_attention(ngram)):
            raise UsageError(f"n-gram layer {ngram} is no delta-rule layer of {self.num_layers}")
        if self.draft and self.arch not in HYBRID:
            raise UsageError(f"a draft layer of {self.arch} is not defined; {', '.join(HYBRID)} have one")
        return self


# Whole numbers that count or measure something; the others are token ids.
SIZES = tuple(f.name for f in fields(Geometry) if f.type is int and f.name not in ("eos", "bos", "ngram_eos"))


def tiny_geometry(arch: str) -> Geometry:
    """Small enough for a reference to run at once, with every part of the architecture."""
    made = Geometry(arch)
    if arch in PLAIN:
        made = replace(made, rotary_dim=made.head_dim, rope_theta=5e5)
    return made


FULL = Geometry(
    "qwen4exp",
    num_layers=48,
    hidden_size=2560,
    vocab_size=248320,
    max_position=262144,
    num_heads=24,
    num_kv_heads=2,
    head_dim=256,
    rotary_dim=64,
    rope_sections=(11, 11, 10, 0),
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=640,
    shared_intermediate_size=640,
    key_heads=16,
    value_heads=48,
    state_dim=128,
    stream_rank=320,
    index_heads=4,
    index_dim=128,
    index_budget=2048,
    heads_per_ngram=8,
    ngram_width=160,
    ngram_base=20011,
    ngram_eos=248044,
    image_token=248056,
    eos=248046,
    bos=248044,
)


def consecutive_primes(base: int, number: int) -> list[int]:
    """The first primes from `base` on."""
    return list(islice((n for n in count(base) if is_prime(n)), number))


def is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, isqrt(n) + 1))


def ngram_base_for(rows: int, heads: int) -> int:
    """The largest base whose `heads` primes fit `rows` rows."""
    base = rows // heads
    while sum(consecutive_primes(base, heads)) > rows:
        base -= 1
        if base < 3:
            raise UsageError(f"{rows} n-gram rows are too few for {heads} heads")
    return base
