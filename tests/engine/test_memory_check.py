"""A context that memory cannot hold is refused before anything is allocated, with what would fit."""

from types import SimpleNamespace

import pytest

from strata import hw
from strata.config import EngineOptions
from strata.engine import Engine
from strata.errors import ContextLengthError


@pytest.fixture
def free(monkeypatch):
    def set_free(n):
        monkeypatch.setattr(hw, "memory", lambda: SimpleNamespace(total=n, available=n, limit=None))

    return set_free


def test_what_was_asked_for_is_refused_with_what_fits(tiny_llama, free):
    free(1 << 19)
    with pytest.raises(
        ContextLengthError, match=r"1024 tokens needs .* GiB are free; --max-context \d+ fits"
    ) as e:
        Engine.load(tiny_llama, EngineOptions(max_model_len=1024))
    fits = int(str(e.value).split("--max-context ")[1].split()[0])
    assert fits % 64 == 0
    assert Engine.load(tiny_llama, EngineOptions(max_model_len=fits)).max_model_len == fits
    with pytest.raises(ContextLengthError):
        Engine.load(tiny_llama, EngineOptions(max_model_len=fits + 64))


def test_without_a_wish_the_largest_that_fits_is_taken(tiny_llama, free, caplog):
    free(1 << 19)
    with caplog.at_level("WARNING", logger="strata"):
        engine = Engine.load(tiny_llama, EngineOptions())
    assert 64 <= engine.max_model_len < 1024
    free(1 << 34)
    assert Engine.load(tiny_llama, EngineOptions()).max_model_len == 1024


def test_no_memory_at_all_is_an_error(tiny_llama, free):
    free(0)
    with pytest.raises(ContextLengthError, match="are free"):
        Engine.load(tiny_llama, EngineOptions())
