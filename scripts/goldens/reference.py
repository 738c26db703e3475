"""The reference: transformers on the CPU, float32, eager attention; its blocks make the draft layer too."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from scripts.goldens.cases import Array, Case

CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen3moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen35": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen35moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    "qwen3next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
    "qwen4exp": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM"),
}
# Names that a one-layer model shares with the draft layer, and what they are called in a checkpoint.
DRAFT_NAMES = (
    ("model.layers.0.", "mtp.layers.0."),
    ("model.norm.", "mtp.norm."),
    ("model.hyper_connection_mixer.", "mtp.hyper_connection_mixer."),
)


def build(case: Case, draft: bool = False) -> Any:
    """An untrained model; `draft`: one full-attention block of the same sort, to be fed by hand."""
    config_name, model_name = CLASSES[case.family]
    arguments = dict(case.config)
    if draft:
        arguments |= {"num_hidden_layers": 1, "layer_types": ["full_attention"], "ple_layer_ids": []}
        if not case.draft_ratio and "indexer_budget" in arguments:
            arguments["indexer_budget"] = 1 << 20  # every block is kept: dense
    for key in set(arguments) - set(case.config):
        del arguments[key]
    config = getattr(transformers, config_name)(**arguments, attn_implementation="eager")
    return getattr(transformers, model_name)(config).float().eval()


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Every float tensor of the checkpoint, the draft layer's `mtp.*` included."""
    out = _float_shapes(build(case))
    if case.config["tie_word_embeddings"]:
        del out["lm_head.weight"]
    if case.draft:
        for name, shape in _float_shapes(build(case, draft=True)).items():
            for old, new in DRAFT_NAMES:
                if name.startswith(old):
                    out[new + name.removeprefix(old)] = shape
        out |= _joining_shapes(case)
    return out


def _float_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    state = model.state_dict().items()
    return {name: tuple(value.shape) for name, value in state if value.is_floating_point()}


def _joining_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    hidden = case.config["hidden_size"]
    wide = hidden * case.config.get("hc_count", 1)
    norms = {"mtp.pre_fc_norm_embedding.weight": (hidden,), "mtp.pre_fc_norm_hidden.weight": (wide,)}
    if case.family == "qwen4exp":
        return norms | {"mtp.fc_embedding.weight": (hidden, hidden), "mtp.fc_hidden.weight": (hidden, hidden)}
    return norms | {"mtp.fc.weight": (hidden, 2 * hidden)}


def constants(case: Case) -> dict[str, Array]:
    """Integer buffers of the model: multipliers, sizes and offsets of the n-gram hash."""
    state = build(case).state_dict()
    return {name: value.numpy() for name, value in state.items() if not value.is_floating_point()}


@dataclass
class Trunk:
    """What the trunk gives the draft layer."""

    logits: torch.Tensor  # [tokens, vocab]
    hidden: torch.Tensor  # [tokens, hidden], after the final norm
    residual: torch.Tensor | None  # [tokens, streams * hidden], before the head mixer


def load(model: Any, state: dict[str, Array]) -> Any:
    """`model` with the tensors of `state` that it has; every float tensor of it must be there."""
    own = model.state_dict()
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    missing = {name for name, value in own.items() if value.is_floating_point()} - set(state) - tied
    if missing:
        raise KeyError(f"no values for {sorted(missing)}")
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in state.items() if k in own}, strict=False)
    return model


@torch.no_grad()
def run(case: Case, state: dict[str, Array], tokens: Array) -> dict[str, Array]:
    """logits [tokens, vocab] and, where the case has a draft layer, draft_logits [tokens - 1, vocab]."""
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    model, kept = load(build(case), state), []
    if case.family == "qwen4exp":
        model.model.hyper_connection_mixer.register_forward_pre_hook(lambda _, args: kept.append(args[0][0]))
    base = model.model(input_ids=ids, use_cache=False)
    hidden = base.last_hidden_state[0]
    trunk = Trunk(model.lm_head(hidden), hidden, kept[0] if kept else None)
    found = {"logits": trunk.logits.numpy()}
    if case.draft:
        found["draft_logits"] = _draft(case, state, model.model.embed_tokens(ids)[0], trunk).numpy()
    return found


def _draft(case: Case, state: dict[str, Array], embedding: torch.Tensor, trunk: Trunk) -> torch.Tensor:
    own = dict(state)
    for old, new in DRAFT_NAMES:
        own |= {old + k.removeprefix(new): v for k, v in state.items() if k.startswith(new)}
    model = load(build(case, draft=True), own)
    weight = {k: torch.from_numpy(v) for k, v in state.items() if k.startswith("mtp.")}
    e = _norm(embedding[1:], weight["mtp.pre_fc_norm_embedding.weight"], 1)
    if case.family != "qwen4exp":
        h = _norm(trunk.hidden[:-1], weight["mtp.pre_fc_norm_hidden.weight"], 1)
        x = torch.cat([e, h], -1) @ weight["mtp.fc.weight"].T
    else:
        streams = case.config["hc_count"]
        h = _norm(trunk.residual[:-1], weight["mtp.pre_fc_norm_hidden.weight"], streams)
        h = h.unflatten(-1, (streams, -1)) @ weight["mtp.fc_hidden.weight"].T
        wide = ((e @ weight["mtp.fc_embedding.weight"].T)[:, None] + h).flatten(-2)
        # The model would tile its input over the streams, which differ here.
        model.model.layers[0].register_forward_pre_hook(lambda _, args: (wide[None], *args[1:]))
        x = e
    return model(inputs_embeds=x[None], use_cache=False).logits[0]


def _norm(x: torch.Tensor, offset: torch.Tensor, groups: int) -> torch.Tensor:
    """RMS norm over each of `groups` slices, weight 1 + offset."""
    slices = x.unflatten(-1, (groups, -1))
    return (slices * torch.rsqrt(slices.pow(2).mean(-1, keepdim=True) + 1e-6)).flatten(-2) * (1 + offset)
