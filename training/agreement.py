"""Exported weights in transformers and in training.model: usage: python -m training.agreement WEIGHTS_DIR TOKENS.npy

Prints the largest difference of logits beside their scale, with the indexer's selection on both sides. Scores of blocks
are often exactly 0 (all heads below), and `topk` leaves open which of equals it takes: here both take the first.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from training.config import TINY, ModelConfig
from training.model import Model
from training.packed import read_packed

Differences = dict[str, float]


@contextmanager
def first_of_equals() -> Iterator[None]:
    """`Tensor.topk` with ties to the lower index."""
    before = torch.Tensor.topk

    def topk(self: torch.Tensor, k: int, dim: int = -1, **_: object) -> torch.return_types.topk:
        values, indices = torch.sort(self, dim=dim, descending=True, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    torch.Tensor.topk = topk  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.topk = before  # type: ignore[method-assign]


def compare(config: ModelConfig, state: dict[str, torch.Tensor], tokens: torch.Tensor) -> Differences:
    """tokens [batch, time]."""
    from transformers import Qwen4ExpForCausalLM  # noqa: PLC0415 (wanted here alone)
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig  # noqa: PLC0415

    ours = Model(config)
    ours.load_state_dict(state)
    settings = {name: value for name, value in config.transformers().items() if name != "model_type"}
    theirs = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**settings, attn_implementation="eager")).eval()
    theirs.load_state_dict({name: t for name, t in state.items() if not name.startswith("mtp.")})
    with torch.no_grad(), first_of_equals():
        found, expected = ours(tokens, sparse=True), theirs(tokens).logits
    difference = (found - expected).abs().amax(-1)
    return {
        "scale": float(expected.std()),
        "largest": float(difference.max()),
        "median": float(difference.median()),
        "rows over 1e-4": int((difference > 1e-4).sum()),
        "rows": difference.numel(),
    }


def random_state(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """A model with nothing left at a value that hides faults."""
    torch.manual_seed(seed)
    model = Model(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name or p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.2)
            elif name.endswith("mlp.gate.weight"):
                p.mul_(20)
    return model.state_dict()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, nargs="?", help="otherwise a tiny random model")
    parser.add_argument("tokens", type=Path, nargs="?")
    parser.add_argument("--length", type=int, default=700)
    given = parser.parse_args()
    if given.weights is None:
        print(compare(TINY, random_state(TINY), torch.randint(0, 250, (2, 150))))
        return
    tokens = torch.from_numpy(np.load(given.tokens)[: given.length].astype(np.int64))[None]
    print(compare(ModelConfig(), read_packed(given.weights), tokens))


if __name__ == "__main__":
    main()
