"""Checkpoints as transformers saves them, experts and n-gram table in parts, and a draft layer as `mtp.*`."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scripts.goldens import tokenizer
from scripts.goldens.cases import Array, Case
from scripts.goldens.reference import build, load


def save(case: Case, state: dict[str, Array], directory: Path) -> None:
    """config.json, model.safetensors and a tokenizer; bfloat16 for a case that is kept so, else float32."""
    dtype = torch.bfloat16 if case.checkpoint else torch.float32
    load(build(case), state).to(dtype).save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    (directory / "model.safetensors").chmod(0o644)
    tokenizer.save(case.family, directory)
    if not case.draft:
        return
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, value in state.items():
        if name.startswith("mtp."):
            parts = _split_experts(name, value).items()
            tensors |= {part: torch.from_numpy(v.copy()).to(dtype) for part, v in parts}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["mtp_num_hidden_layers"] = 1
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def round_to_bfloat16(state: dict[str, Array]) -> dict[str, Array]:
    """The values that a bfloat16 checkpoint holds, as float32."""
    return {name: torch.from_numpy(value).bfloat16().float().numpy() for name, value in state.items()}


def _split_experts(name: str, value: Array) -> dict[str, Array]:
    if ".experts." not in name:
        return {name: value}
    prefix, part = name.rsplit(".", 1)
    out = {}
    for expert, rows in enumerate(value):
        if part == "gate_up_proj":
            gate, up = np.split(rows, 2)
            out |= {f"{prefix}.{expert}.gate_proj.weight": gate, f"{prefix}.{expert}.up_proj.weight": up}
        else:
            out[f"{prefix}.{expert}.{part}.weight"] = rows
    return out
