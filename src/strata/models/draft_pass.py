"""A pass of a draft layer: what it reads, and who takes what it gives."""

from collections.abc import Callable
from dataclasses import dataclass

from strata.ops import Buffer, Builder, Weight

Keep = Callable[[Builder, Buffer], None]  # emits what keeps rows [rows, draft_width]
Head = Callable[[Builder, Buffer, Weight], None]  # emits the product of wanted rows with the head's weight


@dataclass(frozen=True)
class DraftPass:
    """The step's `tokens` are those after the rows' positions."""

    hidden: Buffer  # [rows, draft_width], the trunk's rows, or what the pass before kept of them
    keep: Keep  # of what the next draft reads
    head: Head
    window: int = 0  # cells that a row attends to, 0: all
