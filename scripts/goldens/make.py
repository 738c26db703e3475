"""Writes tests/goldens/<case>/: model.gguf (or a small checkpoint), tokens.npy, logits.npy, case.json,
and where there is a draft layer draft_logits.npy and perhaps draft.gguf.

usage: python -m scripts.goldens.make [--all | CASE ...] [--checkpoints DIR]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from scripts.goldens import checkpoint, files, reference
from scripts.goldens.cases import CASES, Array, Case
from scripts.goldens.randomise import random_state
from scripts.goldens.rounding import RoundedModel
from scripts.goldens.tokens import Choice, choose_tokens

import gguf
from oracles import Model, draft_logits, logits, nrmse

ROOT = Path(__file__).resolve().parents[2]
VERSION = 1
BOUND = 1e-5
TURNED = 0.15  # an error that rounding alone does not reach


def nrmse_by_token(found: Array, expected: Array) -> Array:
    """[tokens], each over the RMS of all expected values."""
    return np.sqrt(((found - expected) ** 2).mean(1) / (expected**2).mean())


def make(case: Case, directory: Path, checkpoints: Path | None) -> str:
    """Builds one case and checks it against the oracle; returns a line about it."""
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    state = random_state(case, reference.shapes(case))
    if case.checkpoint:
        state = checkpoint.round_to_bfloat16(state)
        checkpoint.save(case, state, directory)
    with tempfile.TemporaryDirectory() as scratch:
        model, draft, state = _write_files(case, state, Path(scratch) if case.checkpoint else directory)
        choice = choose_tokens(case, model, draft)
        expected = reference.run(case, state, choice.tokens)
        errors = {"logits": nrmse(logits(model, choice.tokens), expected["logits"])}
        if case.draft:
            found = draft_logits(model, choice.tokens, draft)
            errors["draft_logits"] = nrmse(found, expected["draft_logits"])
        rounded = nrmse_by_token(logits(RoundedModel(model.file.path), choice.tokens), expected["logits"])
    if rounded.max() > TURNED:
        raise RuntimeError(
            f"{case.name}: int8 activations turn a choice at token {rounded.argmax()}: {rounded.max():.2f}"
        )
    if max(errors.values()) > BOUND:
        raise RuntimeError(f"{case.name}: oracle and transformers differ by {errors}, above {BOUND}")
    np.save(directory / "tokens.npy", choice.tokens.astype(np.int32))
    for name, values in expected.items():
        np.save(directory / f"{name}.npy", values)
    (directory / "case.json").write_text(json.dumps(_record(case, choice, errors, rounded), indent=2) + "\n")
    if checkpoints:
        checkpoint.save(case, state, checkpoints / case.name)
    size = sum(path.stat().st_size for path in directory.iterdir())
    seconds = time.monotonic() - started
    return f"{case.name}: {size / 1e3:.0f} kB, {errors}, {choice.least_gaps}, {seconds:.0f} s"


def _write_files(
    case: Case, state: dict[str, Array], directory: Path
) -> tuple[Model, Model | None, dict[str, Array]]:
    """The case's GGUF files, opened, and the state with the values that they hold."""
    constants = reference.constants(case)
    tensors, state = files.store(case, state)
    inside = "inside" if case.draft == "inside" else None
    files.write(case, directory / "model.gguf", tensors, constants, inside)
    if case.draft != "separate":
        return Model(directory / "model.gguf"), None, state
    files.write(case, directory / "draft.gguf", tensors, constants, "separate")
    return Model(directory / "model.gguf"), Model(directory / "draft.gguf"), state


def _record(case: Case, choice: Choice, errors: dict[str, float], rounded: Array) -> dict[str, object]:
    return {
        "covers": case.covers,
        "family": case.family,
        "seed": case.seed,
        "tokens": case.num_tokens,
        "draft": case.draft,
        "checkpoint": case.checkpoint,
        "config": case.config,
        "types": case.types,
        "margin": case.margin,
        "least_gaps": {kind: round(gap, 4) for kind, gap in choice.least_gaps.items()},
        "dropped_blocks": choice.dropped_blocks,
        "tokens_redrawn": choice.redrawn,
        "oracle_nrmse": {name: float(f"{error:.2e}") for name, error in errors.items()},
        "int8_activations_nrmse": float(f"{np.sqrt((rounded**2).mean()):.2e}"),
        "versions": {
            "script": VERSION,
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "gguf": getattr(gguf, "__version__", "0.19.0"),
        },
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "goldens")
    parser.add_argument("--checkpoints", type=Path, help="also save each as a Hugging Face checkpoint")
    arguments = parser.parse_args()
    known = {case.name: case for case in CASES}
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no case {sorted(unknown)}; there are {', '.join(known)}")
    torch.set_num_threads(1)
    for name in known if arguments.all else arguments.names:
        print(make(known[name], arguments.out / name, arguments.checkpoints), flush=True)


if __name__ == "__main__":
    main()
