"""The plan prices the draft layer, its head's list and its state: what they take of memory, within 1 %."""

from dataclasses import replace

import pytest

from strata.config import EngineOptions
from strata.engine import Engine
from strata.engine.drafts import setup, vocabulary
from strata.gguf import open_model
from strata.synth import FULL, PlantedOptions, write_planted

SIZES = {
    "hidden_size": 256, "moe_intermediate_size": 64, "shared_intermediate_size": 64, "vocab_size": 4096,
    "num_layers": 4, "num_experts": 8, "num_experts_per_tok": 2, "max_position": 2048,
}  # fmt: skip
PARTS = ("draft layer", "KV", "index keys", "states", "workspaces", "prompt buffers")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    path = tmp_path_factory.mktemp("planted") / "planted.gguf"
    write_planted(path, PlantedOptions(replace(FULL, draft=True, **SIZES), topics=8), 2)
    return path


def taken(engine):
    """Bytes of everything but weights, and of the draft layer's weights."""
    backend = engine._runner.backend
    buffers = sum(b.nbytes for b in backend._arrays if b.role != "constant")
    arenas = sum(a.nbytes for a in backend._arenas.values())
    draft = [t for n, t in open_model(engine.model_file.path).tensors.items() if n.startswith("blk.4.")]
    return buffers + arenas, sum(t.nbytes for t in draft)


def planned(engine):
    return {name: engine.placement.ram.part(name) for name in PARTS}


@pytest.mark.parametrize("sequences", [1, 4])
def test_what_drafts_add_is_priced(planted, sequences, monkeypatch):
    monkeypatch.setattr(vocabulary, "chosen", lambda *_: None)
    options = EngineOptions(device="cpu", threads=1, max_model_len=1024, max_num_seqs=sequences, prefill=128)
    off, on = (Engine.load(planted, replace(options, mtp=mtp)) for mtp in ("off", "on"))
    plans, takes = [planned(e) for e in (off, on)], [taken(e) for e in (off, on)]
    assert plans[0]["draft layer"] == 0
    assert plans[1]["draft layer"] == pytest.approx(takes[1][1], rel=0.01)
    grown = sum(plans[1][n] - plans[0][n] for n in PARTS[1:])
    assert grown == pytest.approx(takes[1][0] - takes[0][0], rel=0.01)
    assert grown > 1 << 20


def test_the_report_names_what_drafts(planted):
    def report(**more):
        return Engine.load(planted, EngineOptions(device="cpu", threads=1, max_model_len=256, **more)).drafts

    assert report().drafters == ("layer", "lookup")
    assert report(lookup="off").drafters == ("layer",)
    assert report(mtp="off").why == "--mtp is off"
    assert report(mtp="off", lookup="off").drafters == ("none",)
    assert report(spec=0).why == "--spec is 0"
    setup.say(report())
