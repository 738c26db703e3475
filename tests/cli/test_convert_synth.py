"""`strata convert` and `strata synth` as a user calls them."""

import json
from pathlib import Path

import numpy as np
import pytest

from strata.gguf import open_model

GOLDENS = Path(__file__).resolve().parents[1] / "goldens"
CHECKPOINT = GOLDENS / "checkpoint-qwen3next"


def test_convert_says_what_it_chose(strata, tmp_path):
    done = strata("convert", CHECKPOINT, "-o", tmp_path / "x.gguf", "--type", "q8_0", "--threads", 1)
    assert done.code == 0
    assert "qwen3next: " in done.out
    assert "experts: 9 Q8_0" in done.out
    with open_model(tmp_path / "x.gguf") as file:
        assert file.get("general.architecture", str) == "qwen3next"


def test_convert_as_json_and_the_draft_alone(strata, tmp_path):
    done = strata("convert", CHECKPOINT, "-o", tmp_path / "x.gguf", "-t", "F32", "--only", "mtp", "--json")
    found = json.loads(done.out)
    with open_model(tmp_path / "x.gguf") as file:
        assert found["tensors"] == len(file.tensors)
        assert all(name.startswith("blk.2.") for name in file.tensors)
    assert found["types"]["expert"] == {"F32": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--type", "Q3_K"), "--type is 'Q3_K'; it must be one of F32"),
        (("--only", "vision"), "--only is 'vision'; it must be one of mtp"),
        (("--threads", "0"), "--threads is 0"),
    ],
)
def test_convert_refuses(arguments, message, refused, tmp_path):
    assert message in refused("convert", CHECKPOINT, "-o", tmp_path / "x.gguf", *arguments, code=2)
    assert not list(tmp_path.iterdir())


def test_convert_of_no_checkpoint(refused, tmp_path):
    assert "config.json: No such file" in refused("convert", tmp_path, "-o", tmp_path / "x.gguf", code=1)


def test_planted(strata, tmp_path):
    sizes = ("--layers", 2, "--experts", 2, "--used", 1, "--vocab", 512, "--hidden", 256, "--ff", 64)
    done = strata("synth", "planted", tmp_path / "x.gguf", *sizes, "--gain", "half", "--dense", "q4_k")
    assert done.code == 0
    assert "MB/s" in done.out
    assert sorted(np.load(tmp_path / "x.gguf.cycle.npy")) == list(range(512))
    with open_model(tmp_path / "x.gguf") as file:
        assert file.get("qwen4exp.nextn_predict_layers", int) == 1
        assert file.tensors["blk.0.attn_qkv.weight"].type.name == "Q4_K"
        assert file.tensors["blk.0.ffn_up_exps.weight"].type.name == "IQ3_XXS"


def test_dense(strata, tmp_path):
    sizes = ("--layers", 1, "--hidden", 256, "--ff", 512, "--heads", 4, "--kv-heads", 2)
    assert strata("synth", "dense", tmp_path / "x.gguf", "--type", "q5_k", *sizes).code == 0
    with open_model(tmp_path / "x.gguf") as file:
        assert file.tensors["blk.0.attn_q.weight"].type.name == "Q5_K"


def test_tiny(strata, tmp_path):
    options = ("--arch", "qwen35", "--set", "num_layers=8", "--plane", "dense=Q4_0", "--draft")
    assert strata("synth", "tiny", tmp_path / "x.gguf", *options).code == 0
    with open_model(tmp_path / "x.gguf") as file:
        assert file.get("qwen35.block_count", int) == 9
        assert file.tensors["blk.0.attn_qkv.weight"].type.name == "Q4_0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("planted", "x", "--gain", "some"), "--gain is 'some'; it must be a number or half"),
        (("planted", "x", "--ngram-rows", "9"), "9 n-gram rows are too few"),
        (("planted", "x", "--gate", "Q9"), "type 'Q9'; it must be one of"),
        (("planted", "x", "--layers", "0"), "num_layers is 0; it must be at least 1"),
        (("dense", "x", "--heads", "3"), "--hidden 2560 is not a multiple of --heads 3"),
        (("tiny", "x", "--arch", "gemma"), "architecture 'gemma'"),
        (("tiny", "x", "--set", "layers=2"), "--set is 'layers=2'; it must be NAME=N"),
        (("tiny", "x", "--set", "num_heads=0"), "num_heads is 0"),
        (("tiny", "x", "--plane", "skin=Q8_0"), "--plane is 'skin=Q8_0'; planes are embd"),
        (("tiny", "no/such/place"), "cannot be written"),
    ],
)
def test_synth_refuses(arguments, message, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("synth", *arguments, code=2)
    assert not list(tmp_path.iterdir())
