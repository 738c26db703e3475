"""Conversion against golden files: the same tensors, metadata and logits, for every family."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoints import GOLDENS, Tensors, golden_case, read_tensors, taken_back, write_checkpoint

from oracles import Model, draft_logits, logits, nrmse
from strata.convert import blocks, plan_conversion
from strata.gguf import open_model

FLOAT_CASES = [
    "llama",
    "llama-llama3",
    "llama-tied-biases-linear",
    "llama-yarn",
    "qwen3moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "qwen4exp",
]
CHECKPOINTS = ["checkpoint-llama", "checkpoint-qwen3next", "checkpoint-qwen4exp"]
# A norm's 1 is taken off and added again, a logarithm undone: a rounding or two of float32.
ROUNDING = 3e-7
# Golden logits are transformers' in float32.
LOGITS = 1e-5


def converted(directory: Path, output: Path, type_name: str = "F32", only_draft: bool = False) -> Path:
    plan_conversion(directory, type_name, only_draft).write(output)
    return output


def worst(found: Tensors, expected: Tensors) -> float:
    """Largest difference, or infinity where names or shapes differ."""
    if {n: x.shape for n, x in found.items()} != {n: x.shape for n, x in expected.items()}:
        return np.inf
    return max(float(np.abs(found[name] - expected[name]).max()) for name in expected)


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_a_golden_file_comes_back(name, tmp_path):
    directory = write_checkpoint(tmp_path / "hf", *taken_back(name))
    output = converted(directory, tmp_path / "out.gguf")
    assert worst(read_tensors(output), read_tensors(GOLDENS / name / "model.gguf")) <= ROUNDING


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_metadata_agrees_with_the_golden_file(name, tmp_path):
    directory = write_checkpoint(tmp_path / "hf", *taken_back(name))
    output = converted(directory, tmp_path / "out.gguf")
    with open_model(output) as found, open_model(GOLDENS / name / "model.gguf") as expected:
        for key in expected.metadata:
            if key.startswith("tokenizer.") or key == "general.name":
                continue
            assert np.array_equal(found.metadata[key], expected.metadata[key]), key
            assert found.metadata.types(key) == expected.metadata.types(key), key


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_of_a_checkpoint(name, tmp_path):
    model = Model(converted(GOLDENS / name, tmp_path / "out.gguf"))
    tokens = np.load(GOLDENS / name / "tokens.npy")
    assert nrmse(logits(model, tokens), np.load(GOLDENS / name / "logits.npy")) <= LOGITS
    if golden_case(name)["draft"]:
        expected = np.load(GOLDENS / name / "draft_logits.npy")
        assert nrmse(draft_logits(model, tokens), expected) <= LOGITS


@pytest.mark.parametrize("name", [n for n in CHECKPOINTS if golden_case(n)["draft"]])
def test_a_draft_file_borrows_embedding_and_head(name, tmp_path):
    trunk = Model(converted(GOLDENS / name, tmp_path / "all.gguf"))
    draft = Model(converted(GOLDENS / name, tmp_path / "draft.gguf", only_draft=True))
    block = f"blk.{golden_case(name)['config']['num_hidden_layers']}."
    assert all(tensor.startswith(block) for tensor in draft.file.tensors)
    assert draft.key("nextn_predict_layers") == 1
    tokens = np.load(GOLDENS / name / "tokens.npy")
    expected = np.load(GOLDENS / name / "draft_logits.npy")
    assert nrmse(draft_logits(trunk, tokens, draft), expected) <= LOGITS


@pytest.mark.parametrize("name", ["qwen35", "qwen3next", "qwen4exp"])
def test_the_draft_layer_needs_its_own_shards_only(name, tmp_path):
    directory = write_checkpoint(tmp_path / "hf", *taken_back(name), shards=4)
    whole = read_tensors(converted(directory, tmp_path / "all.gguf"))
    for shard in sorted(directory.glob("*.safetensors"))[:-1]:
        shard.unlink()
    draft = read_tensors(converted(directory, tmp_path / "draft.gguf", only_draft=True))
    block = f"blk.{golden_case(name)['config']['num_hidden_layers']}."
    assert worst(draft, {n: x for n, x in whole.items() if n.startswith(block)}) == 0


def test_experts_stored_together_give_the_same_file(tmp_path):
    config, tensors = taken_back("qwen35moe")
    apart = converted(write_checkpoint(tmp_path / "a", config, tensors), tmp_path / "same.gguf").read_bytes()
    for prefix in sorted({n.split("experts.")[0] + "experts." for n in tensors if ".mlp.experts." in n}):
        names = sorted(n for n in tensors if n.startswith(prefix))
        part = {n.removeprefix(prefix): tensors.pop(n) for n in names}
        count = len(part) // 3
        both = [np.concatenate([part[f"{i}.{x}_proj.weight"] for x in ("gate", "up")]) for i in range(count)]
        tensors[prefix + "gate_up_proj"] = np.stack(both)
        tensors[prefix + "down_proj"] = np.stack([part[f"{i}.down_proj.weight"] for i in range(count)])
    directory = write_checkpoint(tmp_path / "b", config, tensors)
    assert (
        worst(read_tensors(converted(directory, tmp_path / "b.gguf")), read_tensors(tmp_path / "same.gguf"))
        == 0
    )
    assert apart == (tmp_path / "same.gguf").read_bytes()


def test_names_of_a_multimodal_checkpoint(tmp_path):
    config, tensors = taken_back("qwen35")
    renamed = {n.replace("model.", "model.language_model.", 1) if n.startswith("model.") else n: x
               for n, x in tensors.items()}  # fmt: skip
    renamed["model.visual.patch_embed.weight"] = np.zeros((2, 2), np.float32)
    outer = {"model_type": "qwen3_5", "text_config": config, "image_token_id": 127}
    directory = write_checkpoint(tmp_path / "hf", outer, renamed)
    found = read_tensors(converted(directory, tmp_path / "out.gguf"))
    assert worst(found, read_tensors(GOLDENS / "qwen35" / "model.gguf")) <= ROUNDING


def _swapped(left, right, beside=blocks.beside):
    return beside(right, left)


FAULTS = {
    "grouped heads": ("qwen35", "tiled_heads", lambda keys, values: np.arange(values)),
    "halves of pairs": ("llama", "adjacent_pairs", lambda heads, width: np.arange(heads * width)),
    "norms without their 1": ("qwen3next", "_plus_one", lambda x: x),
    "packed as it is": ("qwen3next", "unpacked_rows", lambda keys, width, values: (
        np.arange(keys * (2 * width + values)), np.arange(keys * values) + keys * (2 * width + values))),
    "columns of the pair swapped": ("qwen4exp", "beside", _swapped),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, tmp_path, monkeypatch):
    name, function, planted = FAULTS[fault]
    directory = write_checkpoint(tmp_path / "hf", *taken_back(name))
    monkeypatch.setattr(blocks, function, planted)
    output = converted(directory, tmp_path / "out.gguf")
    assert worst(read_tensors(output), read_tensors(GOLDENS / name / "model.gguf")) > 1000 * ROUNDING


def test_checkpoints_are_left_as_they_were(tmp_path):
    copy = shutil.copytree(GOLDENS / "checkpoint-llama", tmp_path / "hf")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    converted(copy, tmp_path / "out.gguf", "Q8_0")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
