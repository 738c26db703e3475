"""What blocks of delta rule and gated attention together need for a sequence."""

from collections.abc import Sequence

from strata.memory import StateShape
from strata.models.delta_mixer import DeltaMixer
from strata.models.gated_attention import GatedAttention


def mixer_state(mixers: Sequence[GatedAttention | DeltaMixer]) -> StateShape:
    """The state of mixers in order of their blocks, of which one at least is attention; a draft layer's come last."""
    delta = [m for m in mixers if isinstance(m, DeltaMixer)]
    full = [m for m in mixers if isinstance(m, GatedAttention)]
    indexers = [m.indexer for m in full if m.indexer is not None]
    return StateShape(
        kv_layers=len(full),
        kv_heads=full[0].k_proj.shape[0] // full[0].head_dim,
        head_dim=full[0].head_dim,
        index=indexers[0].shape(len(indexers)) if indexers else None,
        delta=tuple(m.shape for m in delta),
        rings=tuple(m.ring for m in delta),
    )
