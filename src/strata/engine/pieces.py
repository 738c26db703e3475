"""How a run of tokens is cut into steps. A token's form depends on its position alone (docs/design.md)."""

from dataclasses import dataclass

from strata.ops import CHUNK_BLOCK, MAX_STEP_ROWS, Form


@dataclass(frozen=True)
class Piece:
    """The next `count` tokens, in one form."""

    form: Form
    count: int


@dataclass(frozen=True)
class Cutter:
    """`prefill`: prompt tokens a step may read, in whole blocks of 64 and of at least one: a block takes the chunk form
    as a whole, so that no value changes a bit. At 0 there is no chunk form, and every token takes the step form."""

    prefill: int

    @property
    def chunk_rows(self) -> int:
        """Rows of the largest chunk; 0 without a chunk form."""
        return max(self.prefill // CHUNK_BLOCK, 1) * CHUNK_BLOCK if self.prefill else 0

    @property
    def step_rows(self) -> int:
        """Rows of one sequence that a step of the step form may hold."""
        return min(self.prefill, MAX_STEP_ROWS) if 0 < self.prefill < CHUNK_BLOCK else MAX_STEP_ROWS

    def cut(self, position: int, remaining: int) -> Piece:
        """The piece that begins at `position` when `remaining` tokens are known but not computed."""
        into_block = position % CHUNK_BLOCK
        if self.chunk_rows and into_block == 0 and remaining >= CHUNK_BLOCK:
            return Piece("chunk", min(remaining // CHUNK_BLOCK * CHUNK_BLOCK, self.chunk_rows))
        to_border = CHUNK_BLOCK - into_block if self.chunk_rows else remaining
        return Piece("step", min(remaining, self.step_rows, to_border))
