"""Rates of this machine: measured with the serving kernels once, kept, and never trusted blindly."""

import json

import pytest

from strata import _native, models
from strata.engine import rates
from strata.engine.rates import MissCosts, machine_costs, measure_costs
from strata.gguf import open_model
from strata.memory.expert_store import expert_layers
from strata.synth import TinyOptions, tiny_geometry, write_tiny


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    path = tmp_path_factory.mktemp("rates") / "model.gguf"
    write_tiny(path, TinyOptions(tiny_geometry("qwen3moe"), {"gate": "Q8_0", "up": "Q8_0", "down": "Q8_0"}))
    return expert_layers(models.load(open_model(path)))[0]


def test_costs_are_measured_with_the_kernels(experts):
    costs = measure_costs(experts, 1, "auto")
    assert all(0 <= v < 1e6 for v in costs.values())
    assert costs.cpu_byte > 0 and costs.link_byte > 0 and costs.ram_byte > 0
    assert 0 <= _native.split_misses(8, 1 << 20, 1.0, costs.values()) <= 8


def test_they_are_measured_once_a_machine(experts, tmp_path, monkeypatch):
    first = machine_costs(experts, 1, "auto", 0, tmp_path)
    monkeypatch.setattr(rates, "measure_costs", lambda *_: pytest.fail("measured again"))
    assert machine_costs(experts, 1, "auto", 0, tmp_path) == first
    limited = machine_costs(experts, 1, "auto", 10e9, tmp_path)
    assert limited.link_byte == pytest.approx(0.1) and limited.cpu_byte == first.cpu_byte


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 0}', "NaN-row", "type"])
def test_a_file_that_makes_no_sense_is_measured_anew(experts, tmp_path, monkeypatch, text):
    sound = MissCosts(1.0, 2.0, 3.0, 4.0)
    monkeypatch.setattr(rates, "measure_costs", lambda *_: sound)
    machine_costs(experts, 1, "auto", 0, tmp_path)
    [path] = (tmp_path / "rates").iterdir()
    kept = json.loads(path.read_text())
    if text == "NaN-row":
        text = json.dumps({**kept, "cpu_row_byte": float("nan")})
    elif text == "type":
        text = json.dumps({**kept, "cpu_row_byte": "fast"})
    path.write_text(text)
    fresh = MissCosts(5.0, 6.0, 7.0, 8.0)
    monkeypatch.setattr(rates, "measure_costs", lambda *_: fresh)
    assert machine_costs(experts, 1, "auto", 0, tmp_path) == fresh
    assert machine_costs(experts, 1, "auto", 0, tmp_path) == fresh


def test_a_disk_that_refuses_costs_nothing_but_the_next_measurement(experts, tmp_path, caplog):
    (tmp_path / "rates").write_text("a file where the directory should be")
    with caplog.at_level("WARNING", logger="strata"):
        assert machine_costs(experts, 1, "auto", 0, tmp_path).cpu_byte > 0
    assert "cannot be saved" in caplog.text
