"""Planted models: the cycle is followed, and no part of a layer can be left out unseen."""

import filecmp
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small import SMALL

from oracles import Model, draft_logits, logits, nrmse, trunk
from strata.errors import UsageError
from strata.gguf import open_model, verify
from strata.synth import FULL, PlantedOptions, ngram_base_for, write_planted
from strata.synth.gain import LEAST_ENERGY, energy
from strata.synth.geometry import is_prime

ROOT = Path(__file__).resolve().parents[2]
START, TOKENS = 100, 40


class Planted:
    """A written file as the oracle sees it, with a stretch of its cycle."""

    def __init__(self, path: Path, options: PlantedOptions) -> None:
        write_planted(path, options, threads=2)
        self.model, self.cycle = Model(path, np.float32), np.load(f"{path}.cycle.npy")
        self.tokens = self.cycle[START : START + TOKENS]

    def after(self, steps: int, count: int) -> np.ndarray:
        """The token that many steps on, for the first `count` of the stretch."""
        return self.cycle[START + steps : START + steps + count]


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    options = PlantedOptions(SMALL, topics=8, run=50, gain=None)
    return Planted(tmp_path_factory.mktemp("half") / "half.gguf", options)


@pytest.fixture(scope="module")
def reference(half):
    return logits(half.model, half.tokens)


def test_the_cycle_is_followed(half, reference):
    assert np.array_equal(reference.argmax(-1), half.after(1, TOKENS))


def test_the_draft_follows_it_too(half):
    found = draft_logits(half.model, half.tokens).argmax(-1)
    assert np.array_equal(found, half.after(2, TOKENS - 1))


def test_noise_makes_drafts_fail(tmp_path):
    loud = Planted(tmp_path / "loud.gguf", PlantedOptions(SMALL, topics=8, run=50, draft_noise=30.0))
    found = draft_logits(loud.model, loud.tokens).argmax(-1)
    assert np.mean(found == loud.after(2, TOKENS - 1)) < 0.5
    assert np.array_equal(logits(loud.model, loud.tokens).argmax(-1), loud.after(1, TOKENS))


def test_mixers_and_experts_carry_half_of_the_energy(half):
    embedding = np.tile(half.model["token_embd.weight"][half.tokens], (1, SMALL.num_streams))
    residual = trunk(half.model, half.tokens)
    share = np.sum((residual - embedding) ** 2) / np.sum(residual**2)
    assert 0.5 <= share <= 0.65


PARTS = [(i, part) for i in range(SMALL.num_layers) for part in ("mixer", "ffn_down_exps")]


@pytest.mark.parametrize(("layer", "part"), PARTS)
def test_leaving_a_part_out_moves_the_logits(layer, part, half, reference):
    if part == "mixer":
        part = "attn_output" if SMALL.is_attention(layer) else "ssm_out"
    name = f"blk.{layer}.{part}.weight"
    half.model.overrides[name] = np.zeros_like(half.model[name])
    try:
        assert nrmse(logits(half.model, half.tokens), reference) >= 0.05
    finally:
        del half.model.overrides[name]


def test_energy_grows_with_layers_and_never_falls_below_half():
    found = [energy(layers, 2560, 64, 1.0) for layers in (4, 8, 24, 48)]
    assert found[0] == found[1] == LEAST_ENERGY
    assert found[1] < found[2] < found[3]


def tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("gain", [1.0, 8.0])
def test_bytes_are_those_of_the_tool(gain, tmp_path, monkeypatch):
    """Full widths, so that measured figures stay comparable; everything countable is cut down."""
    old, new = tmp_path / "old.gguf", tmp_path / "new.gguf"
    sizes = ["--layers", "2", "--experts", "2", "--used", "1", "--vocab", "512", "--gain", str(gain)]
    monkeypatch.setattr(sys, "argv", ["planted.py", str(old), "--threads", "2", *sizes])
    tool("planted").main()
    counts = {"num_layers": 2, "num_experts": 2, "num_experts_per_tok": 1, "vocab_size": 512}
    write_planted(new, PlantedOptions(replace(FULL, **counts), gain=gain), threads=2)
    assert filecmp.cmp(old, new, shallow=False)
    assert np.array_equal(np.load(f"{old}.cycle.npy"), np.load(f"{new}.cycle.npy"))


def test_a_seed_is_a_file(tmp_path):
    def bytes_of(name, **more):
        write_planted(tmp_path / name, PlantedOptions(SMALL, topics=8, **more), threads=2)
        return (tmp_path / name).read_bytes()

    assert bytes_of("a") == bytes_of("b")
    assert bytes_of("a") != bytes_of("c", seed=8)


def test_types_by_plane(tmp_path):
    types = {"gate": "Q4_K", "up": "MXFP4", "down": "IQ4_NL", "dense": "Q5_K", "head": "Q6_K", "embd": "F16"}
    write_planted(tmp_path / "x.gguf", PlantedOptions(SMALL, types, topics=8), threads=2)
    with open_model(tmp_path / "x.gguf") as file:
        kinds = {name: info.type.name for name, info in file.tensors.items()}
    assert kinds["blk.4.ffn_gate_exps.weight"] == "Q4_K"  # the draft layer has the file's types
    assert kinds["blk.0.ffn_up_exps.weight"] == "MXFP4"
    assert kinds["blk.0.ffn_down_exps.weight"] == "IQ4_NL"
    assert kinds["blk.0.attn_qkv.weight"] == "Q5_K"
    assert kinds["output.weight"] == "Q6_K"
    assert kinds["token_embd.weight"] == "F16"


def test_a_full_table_is_a_hole(tmp_path):
    base = ngram_base_for(320_001_536, 8)
    options = PlantedOptions(replace(SMALL, ngram_base=base), topics=8, sparse_table=True)
    written = write_planted(tmp_path / "x.gguf", options, threads=2)
    status = (tmp_path / "x.gguf").stat()
    assert written.nbytes == status.st_size > 320_000_000 * 18
    assert status.st_blocks * 512 < 50e6
    with open_model(tmp_path / "x.gguf") as file:
        sizes = file.metadata["qwen4exp.ple.head_vocab_sizes"]
        assert file.tensors["per_layer_token_embd.weight"].ne[1] >= sizes.sum()


def test_the_published_table_is_found_again():
    assert replace(FULL, ngram_base=ngram_base_for(320_001_536, 16)).ngram_rows == 320_001_536
    assert all(is_prime(n) for n in FULL.ngram_sizes)
    with pytest.raises(UsageError, match="16 n-gram rows are too few"):
        ngram_base_for(16, 16)


def test_the_file_is_sound_and_nothing_else_is_left(tmp_path):
    write_planted(tmp_path / "x.gguf", PlantedOptions(SMALL, topics=8), threads=2)
    assert verify(tmp_path / "x.gguf").tensors > 100
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gguf", "x.gguf.cycle.npy"]


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="type 'Q9'"):
        write_planted(tmp_path / "x.gguf", PlantedOptions(SMALL, {"gate": "Q9"}, topics=8), threads=2)
    with pytest.raises(UsageError, match="planted llama"):
        write_planted(
            tmp_path / "x.gguf", PlantedOptions(replace(SMALL, arch="llama", draft=False)), threads=2
        )
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for call in ("ftruncate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{call}", full)
            with pytest.raises(UsageError, match=r"bytes\): No space left"):
                write_planted(tmp_path / "x.gguf", PlantedOptions(SMALL, topics=8), threads=2)
        assert not list(tmp_path.iterdir())
