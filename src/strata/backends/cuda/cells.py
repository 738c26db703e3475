"""Where an op finds the cells of its rows: in the pool by the page table, with slots beside it where the pool lies in
RAM, or, in chunks, in the stage (kv_stage.py)."""

from dataclasses import dataclass

from strata.backends.cuda.driver import Arg
from strata.backends.cuda.lower import Context
from strata.ops.kv_fetch import ResidentKV
from strata.ops.kv_store import KvStore
from strata.ops.sparse_attention import SparseAttention


@dataclass(frozen=True)
class Cells:
    """Arguments of launches. `pools`: keys, values, their scales; `resident`: slots to look in besides."""

    sequences: Arg
    page_table: Arg
    pools: list[Arg]
    num_pages: int
    resident: ResidentKV | None = None


def pool_cells(op: KvStore | SparseAttention, at: Context) -> Cells:
    """In the pool and its slots."""
    pools = at.at(op.k_pool, op.v_pool, op.k_scales, op.v_scales)
    sequences, page_table = at.at(op.sequences, op.page_table)
    return Cells(sequences, page_table, pools, op.k_pool.shape[0], op.resident)


def stage_cells(op: KvStore | SparseAttention, at: Context) -> Cells | None:
    """In the stage, where the op's cells are brought there."""
    if at.staged is None or op.resident is None:
        return None
    stage = at.staged.stage
    return Cells(stage.sequences, stage.page_table, stage.pools, stage.pages)
