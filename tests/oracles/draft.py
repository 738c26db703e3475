"""The draft layer (MTP): position i's residual and token i + 1 give a guess at token i + 2."""

import numpy as np

from oracles import hyper
from oracles.forward import block, final, head, trunk
from oracles.model import Array, Model
from oracles.norms import grouped_norm, rms_norm
from oracles.trace import Gap


def draft_logits(
    model: Model, tokens: Array, draft: Model | None = None, trace: list[Gap] | None = None
) -> Array:
    """[tokens - 1, vocab]; row i has rope position i. `draft`: its file, where that is not the trunk's."""
    draft = draft or model
    layer = f"blk.{draft.num_layers}."
    residual, following = trunk(model, tokens)[:-1], tokens[1:]
    embedding = model["token_embd.weight"][following]
    embedding = rms_norm(embedding, draft[layer + "nextn.enorm.weight"], draft.eps)
    if draft.arch == "qwen4exp":
        x = _wide_input(draft, layer, embedding, residual)
        x = block(draft, draft.num_layers, x, following, trace)
        return head(model, hyper.read(draft, layer + "nextn.hc_head_", x))
    hidden = rms_norm(final(model, residual), draft[layer + "nextn.hnorm.weight"], draft.eps)
    x = np.concatenate([embedding, hidden], -1) @ draft[layer + "nextn.eh_proj.weight"].T
    x = block(draft, draft.num_layers, x, following, trace)
    return head(model, rms_norm(x, draft[layer + "nextn.shared_head_norm.weight"], draft.eps))


def _wide_input(draft: Model, layer: str, embedding: Array, residual: Array) -> Array:
    """Every stream of the residual, before the head mixer, joined to the same embedding."""
    count, n = int(draft.key("hyper_connection.count")), len(residual)
    hidden = grouped_norm(residual, draft[layer + "nextn.hnorm.weight"], count, draft.eps)
    hidden = hidden.reshape(n, count, -1)
    both = np.concatenate([np.broadcast_to(embedding[:, None], hidden.shape), hidden], -1)
    return (both @ draft[layer + "nextn.eh_proj.weight"].T).reshape(n, -1)
