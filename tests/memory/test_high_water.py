"""Real runs stay inside their plan: peak resident memory against the sum of its parts."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strata.synth import FULL, PlantedOptions, TinyOptions, write_planted, write_tiny
from strata.synth.geometry import tiny_geometry

SCRIPT = Path(__file__).parent / "run_and_report.py"


def run(path, draft=False, **settings):
    arguments = [sys.executable, str(SCRIPT), str(path), json.dumps(settings), "draft" if draft else "trunk"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["mark"], found["plan"]["parts"]


@pytest.fixture(scope="module")
def wide_llama(tmp_path_factory):
    """Cells of 16 KB: what a prompt fills is more than the slack of everything else."""
    path = tmp_path_factory.mktemp("wide") / "model.gguf"
    geometry = replace(tiny_geometry("llama"), num_kv_heads=4, head_dim=128, rotary_dim=128)
    write_tiny(path, TinyOptions(geometry))
    return path


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """All kinds of layers, experts and a draft layer; 0.2 GB."""
    path = tmp_path_factory.mktemp("planted") / "model.gguf"
    sizes = {"hidden_size": 512, "moe_intermediate_size": 256, "shared_intermediate_size": 256}
    g = replace(FULL, num_layers=4, num_experts=64, vocab_size=16384, max_position=4096, draft=True, **sizes)
    write_planted(path, PlantedOptions(g), 2)
    return path


def test_cells_that_a_prompt_fills(wide_llama):
    mark, parts = run(wide_llama, max_model_len=4096, kv="f32", threads=2)
    assert parts["KV"] == 4096 * 4 * 2 * 4 * 128 * 4
    assert mark <= sum(parts.values())
    assert mark > sum(parts.values()) - parts["KV"], "a plan without the cells would not be noticed"


@pytest.mark.parametrize("draft", [False, True])
def test_every_part_of_the_target_in_small(planted, draft):
    mark, parts = run(planted, draft, max_model_len=512, prefill=512, threads=2)
    assert mark <= sum(parts.values())
    largest = (
        parts["prompt buffers"] + parts["experts"] + parts["states"] * 4 // 5
    )  # taps' slots are not touched
    assert mark > sum(parts.values()) - largest, "a plan without experts and buffers would not be noticed"
