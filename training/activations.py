"""Mean squares of what the experts' weights read, for `strata convert --activations`.

usage: python -m training.activations WEIGHTS_DIR DATA_DIR OUT.npz
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training.batches import Batches
from training.config import ModelConfig
from training.experts import MixtureOfExperts
from training.model import Model
from training.packed import read_packed


class Squares:
    """Sums over the tokens that each expert of a layer gets."""

    def __init__(self, c: ModelConfig):
        self.inputs = torch.zeros(c.num_experts, c.hidden_size)
        self.inner = torch.zeros(c.num_experts, c.moe_intermediate_size)

    def add(self, layer: MixtureOfExperts, x: Tensor) -> None:
        """x [batch, time, hidden]."""
        flat = x.flatten(0, 1)
        chosen, _, _ = layer.gate(flat)
        for expert in range(len(self.inputs)):
            rows = flat[(chosen == expert).any(-1)]
            gate, up = (rows @ layer.experts.gate_up_proj[expert].T).chunk(2, dim=-1)
            self.inputs[expert] += rows.square().sum(0)
            self.inner[expert] += (F.silu(gate) * up).square().sum(0)


@torch.no_grad()
def collect(model: Model, tokens: Tensor) -> dict[str, np.ndarray]:
    """Arrays [experts, k] by GGUF name, from tokens [batch, time + 1]."""
    blocks = [*model.model.layers, *model.mtp.layers]
    found = [Squares(model.config) for _ in blocks]
    hooks = [
        block.mlp.register_forward_pre_hook(lambda layer, args, kept=kept: kept.add(layer, args[0]))
        for block, kept in zip(blocks, found, strict=True)
    ]
    out = model.run(tokens[:, :-1])
    model.draft(out.residual, tokens[:, 1:])
    for hook in hooks:
        hook.remove()
    arrays = {}
    for i, kept in enumerate(found):
        for short, sums in (("gate", kept.inputs), ("up", kept.inputs), ("down", kept.inner)):
            arrays[f"blk.{i}.ffn_{short}_exps.weight"] = sums.numpy()
    return arrays


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "data", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    model = Model(ModelConfig())
    model.load_state_dict(read_packed(given.weights))
    np.savez(given.out, **collect(model, Batches(given.data, "cpu").step(0, 48, 512)))


if __name__ == "__main__":
    main()
