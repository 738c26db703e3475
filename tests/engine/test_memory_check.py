"""A context that memory cannot hold is refused before anything is allocated, with what would fit."""

from dataclasses import replace

import pytest

from strata import hw
from strata.config import EngineOptions
from strata.engine import Engine
from strata.errors import MemoryLimitError


@pytest.fixture
def ram(monkeypatch):
    real = hw.machine()

    def set_ram(n):
        monkeypatch.setattr(
            hw, "machine", lambda threads=0: replace(real, ram=n, others=0, cgroup_limit=None)
        )

    return set_ram


def test_what_was_asked_for_is_refused_with_what_fits(tiny_llama, ram):
    asked = EngineOptions(max_model_len=1024, kv="f32")
    ram(1 << 40)
    needed = Engine.load(tiny_llama, asked).placement.ram
    ram(int((needed.used - needed.part("KV") // 3) / 0.9))
    with pytest.raises(MemoryLimitError, match=r"GiB of RAM .*; --max-context \d+ fits") as e:
        Engine.load(tiny_llama, asked)
    fits = int(str(e.value).split("--max-context ")[1].split()[0])
    assert fits % 64 == 0 and 64 <= fits < 1024
    assert Engine.load(tiny_llama, replace(asked, max_model_len=fits)).max_model_len == fits


def test_without_a_wish_the_largest_that_fits_is_taken(tiny_llama, ram, caplog):
    options = EngineOptions(kv="f32")
    ram(1 << 40)
    engine = Engine.load(tiny_llama, options)
    assert engine.max_model_len == 1024
    needed = engine.placement.ram
    ram(int((needed.used - needed.part("KV") // 3) / 0.9))
    with caplog.at_level("WARNING", logger="strata"):
        engine = Engine.load(tiny_llama, options)
    assert 64 <= engine.max_model_len < 1024
    assert f"a context of {engine.max_model_len} tokens is taken" in caplog.text


def test_sequences_share_a_pool_that_cannot_hold_all_of_them(tiny_llama, ram, caplog):
    options = EngineOptions(max_num_seqs=32, kv="f32")
    ram(1 << 40)
    needed = Engine.load(tiny_llama, options).placement.ram
    ram(int((needed.used - needed.part("KV") // 3) / 0.9))
    with caplog.at_level("WARNING", logger="strata"):
        engine = Engine.load(tiny_llama, options)
    assert engine.max_model_len == 1024
    assert 16 <= engine.num_pages == engine.placement.choice.pages < 32 * 16
    assert "are shared by up to 32 sequences" in caplog.text


def test_no_memory_at_all_is_an_error(tiny_llama, ram):
    ram(0)
    with pytest.raises(MemoryLimitError, match="0 GiB may be used"):
        Engine.load(tiny_llama, EngineOptions())


def test_memory_that_goes_while_loading_is_an_error(tiny_llama, monkeypatch):
    real, left = hw.machine(), [1 << 40, 1 << 20]
    monkeypatch.setattr(
        hw, "machine", lambda threads=0: replace(real, ram=left.pop(0), others=0, cgroup_limit=None)
    )
    with pytest.raises(MemoryLimitError, match="after loading"):
        Engine.load(tiny_llama, EngineOptions())


@pytest.mark.parametrize("options", [{}, {"vram_limit_gib": 24.0, "cpu_share": "0.5"}])
def test_what_only_a_gpu_has_a_use_for_is_named(tiny_llama, options, caplog):
    with caplog.at_level("WARNING", logger="strata"):
        Engine.load(tiny_llama, EngineOptions(device="cpu", max_model_len=64, **options))
    told = "--vram-limit-gib, --cpu-share: of no effect without a GPU" in caplog.text
    assert told == bool(options) == ("without a GPU" in caplog.text)
