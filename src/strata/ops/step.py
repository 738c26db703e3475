"""Step inputs: the buffers through which every op learns what a step is about (docs/design.md)."""

from dataclasses import dataclass, field, fields
from typing import Literal, Self

from strata.ops.buffers import Buffer

PAGE_CELLS = 64  # cells (token positions) in a KV page
MAX_STEP_ROWS = 32  # the largest bucket of the step form
# Rows by position that recurrent ops keep. Pending rows need twice a step's: a sequence may fill two steps in a row,
# and the second applies the first one's rows while it writes its own.
RING_ROWS = 2 * MAX_STEP_ROWS
MAX_TAPS = 4  # positions inside a prompt chunk at which the state of a sequence is written out
CHUNK_BLOCK = 64  # the chunk form takes whole blocks of so many tokens, at multiples of it

Form = Literal["step", "chunk"]


@dataclass(frozen=True, eq=False)
class StepBuffers:
    """One set per engine, shared by the programs of all row buckets. Filled by the runner before each replay."""

    num_rows: Buffer  # i32 [1]
    tokens: Buffer  # i32 [max_rows]
    positions: Buffer  # i32 [max_rows], absolute cell index
    rope_positions: (
        Buffer  # i32 [max_rows, 3], rotary position on each axis; of text, the position three times
    )
    sequences: Buffer  # i32 [max_rows], row of the page table; rows of a sequence are consecutive
    page_table: Buffer  # i32 [max_num_seqs, pages_per_seq]
    commits: Buffer  # i32 [max_num_seqs], rows of the sequence's last step-form step that became state
    tap_positions: Buffer  # i32 [MAX_TAPS], multiples of 64 inside the chunk or its end; 0: none
    tap_slots: Buffer  # i32 [MAX_TAPS], state slots that the taps write
    num_logit_rows: Buffer  # i32 [1]
    logit_rows: Buffer  # i32 [max_logit_rows], rows whose logits are wanted
    constants: dict[str, Buffer] = field(
        default_factory=dict
    )  # made once, shared by all programs (Builder.constant)

    @classmethod
    def create(cls, max_rows: int, max_num_seqs: int, max_model_len: int, max_logit_rows: int) -> Self:
        """Buffers for steps of up to `max_rows` rows of `max_num_seqs` sequences."""

        def ints(name: str, *shape: int, live: Buffer | None = None) -> Buffer:
            return Buffer(name, shape, "i32", "input", live=live)

        num_rows, num_logit_rows = ints("num_rows", 1), ints("num_logit_rows", 1)
        return cls(
            num_rows=num_rows,
            tokens=ints("tokens", max_rows, live=num_rows),
            positions=ints("positions", max_rows, live=num_rows),
            rope_positions=ints("rope_positions", max_rows, 3, live=num_rows),
            sequences=ints("sequences", max_rows, live=num_rows),
            page_table=ints("page_table", max_num_seqs, -(-max_model_len // PAGE_CELLS)),
            commits=ints("commits", max_num_seqs),
            tap_positions=ints("tap_positions", MAX_TAPS),
            tap_slots=ints("tap_slots", MAX_TAPS),
            num_logit_rows=num_logit_rows,
            logit_rows=ints("logit_rows", max_logit_rows, live=num_logit_rows),
        )

    def all(self) -> tuple[Buffer, ...]:
        """Every buffer of the set."""
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(v for v in values if isinstance(v, Buffer))
