"""Figures of the model card: usage: python -m training.measure WEIGHTS_DIR MODEL.gguf DATA_DIR OUT_DIR

Writes routing.npz and measures.json. The experts are those of the file; everything else is as trained.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.gguf import open_model
from strata.quants import FORMATS
from training import routing
from training.batches import SHARES
from training.chains import AHEAD, Bigrams, accepted, drafts
from training.config import ModelConfig
from training.model import Model
from training.packed import read_packed

PROMPTS, PROMPT, GENERATED = 6, 64, 96  # per domain
PART, TURN = 1000, 125  # tokens of a language in the trace, and of a turn in its switching part
LOADED = 16_384  # tokens of a domain
CACHES = (0.125, 0.25, 0.35, 0.52)


def with_experts_of(model: Model, path: Path) -> None:
    """Routed experts as the file holds them."""
    file = open_model(path)

    def tensor(name: str) -> torch.Tensor:
        info = file.tensors[name]
        return torch.from_numpy(FORMATS[info.type.name].decode(file.data(name)).reshape(info.ne[::-1]))

    for i, block in enumerate([*model.model.layers, *model.mtp.layers]):
        gate, up, down = (tensor(f"blk.{i}.ffn_{short}_exps.weight") for short in ("gate", "up", "down"))
        block.mlp.experts.gate_up_proj.data = torch.cat([gate, up], dim=1)
        block.mlp.experts.down_proj.data = down


def generated(path: Path, held_out: dict[str, np.ndarray]) -> np.ndarray:
    """Greedy continuations of held-out text, prompts included: int64 [prompts, tokens]."""
    engine = Engine.load(path, EngineOptions(max_model_len=PROMPT + GENERATED))
    rows = []
    for tokens in held_out.values():
        for start in np.linspace(0, len(tokens) - PROMPT - 1, PROMPTS).astype(int):
            prompt = tokens[start : start + PROMPT].tolist()
            sampling = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True)
            rows.append(prompt + list(engine.generate(prompt, sampling)))
    return np.array(rows, np.int64)


def mixed(held_out: dict[str, np.ndarray]) -> tuple[np.ndarray, list[tuple[str, int]]]:
    """English, code, Chinese, then all in turns: tokens, and where each part starts."""
    parts, segments = [], []
    for number, (domain, tokens) in enumerate(held_out.items()):
        parts.append(tokens[-PART:])
        segments.append((domain, number * PART))
    segments.append(("switching", len(parts) * PART))
    turns = [tokens[-2 * PART :][:PART].reshape(-1, TURN) for tokens in held_out.values()]
    switching = np.stack(turns, axis=1).reshape(-1)[:PART]
    return np.concatenate([*parts, switching]).astype(np.int64), segments


def acceptance(model: Model, tokens: np.ndarray, training: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """By drafter: shares of anchors with the first 1, 2, .. drafts right."""
    everything = Bigrams(np.concatenate(list(training.values())), model.config.vocab_size)
    guesses = [found.numpy() for found in drafts(model, torch.from_numpy(tokens))]
    by_domain = []
    for number, own in enumerate(training.values()):
        rows = tokens[number * PROMPTS : (number + 1) * PROMPTS]
        by_domain.append(accepted(Bigrams(own, model.config.vocab_size).guesses(rows), rows, PROMPT))
    return {
        "draft layer": accepted(guesses, tokens, PROMPT),
        "bigrams of all training text": accepted(everything.guesses(tokens), tokens, PROMPT),
        "bigrams of the right language": np.mean(by_domain, axis=0).tolist(),
    }


def load_figures(model: Model, held_out: dict[str, np.ndarray]) -> dict[str, object]:
    """How evenly experts are used, over LOADED tokens of each domain."""
    windows = np.concatenate([tokens[:LOADED].reshape(-1, 512) for tokens in held_out.values()])
    ids, shares = routing.trace(model, torch.from_numpy(windows))
    load = routing.loads(ids, model.config.num_experts)
    return {
        "load, entropy in bits of 6": routing.entropy(load).round(3).tolist(),
        "load, least and largest expert": [[float(r.min()), float(r.max())] for r in load.round(4)],
        "experts without a token": (load == 0).sum(axis=1).tolist(),
        "entropy of a token's shares": routing.entropy(shares).mean(axis=1).round(3).tolist(),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "model", "data", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    config = ModelConfig()
    model = Model(config)
    model.load_state_dict(read_packed(given.weights))
    with_experts_of(model, given.model)
    held_out = {d: np.load(given.data / f"held-out-{d}.npy").astype(np.int64) for d in SHARES}
    training = {d: np.load(given.data / f"train-{d}.npy") for d in SHARES}
    found: dict[str, object] = {}
    found["bigram perplexity"] = {
        d: Bigrams(training[d], config.vocab_size).perplexity(held_out[d][:32_768]) for d in SHARES
    }
    found[f"accepted, first 1 to {AHEAD}"] = acceptance(model, generated(given.model, held_out), training)
    tokens, segments = mixed(held_out)
    found |= load_figures(model, held_out)
    ids, _ = routing.trace(model, torch.from_numpy(tokens)[None], sparse=True)
    routing.save(given.out / "routing.npz", ids, segments, config.num_experts)
    for name, part in (
        ("all", slice(None)),
        ("english", slice(0, PART)),
        ("switching", slice(3 * PART, None)),
    ):
        found[f"LRU hits, {name}"] = {
            s: round(routing.lru_hits(ids[:, part], config.num_experts, s), 4) for s in CACHES
        }
    (given.out / "measures.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
