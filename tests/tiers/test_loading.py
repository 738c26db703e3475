"""Whole models through the engine's options, merged planes and draft files included; what loading says."""

import hashlib
import logging
import threading
import time
from pathlib import Path

import pytest
from golden import ALL
from rig import rig

from strata import models
from strata.config import EngineOptions
from strata.engine import Engine
from strata.gguf import open_model
from strata.memory import expert_store
from strata.memory.counters import NAMES, read_counters
from strata.memory.expert_store import ExpertStore, StoreOptions, expert_layers

ROOT = Path(__file__).resolve().parents[2]
MERGED = "qwen4exp-two-streams"  # gate and up in one tensor, the draft layer in a file of its own


def hashes(name, **options):
    """Logits of the model and of its draft layer."""
    case = ALL[name]
    tokens, found = case.tokens.tolist()[:40], hashlib.sha256()
    engine = Engine.load(
        case.model_path, EngineOptions(threads=2, max_model_len=64, **options), case.draft_path
    )
    for piece in engine.logits(tokens):
        found.update(piece.tobytes())
    if case.draft_path is not None:
        for piece in engine.draft_logits(tokens):
            found.update(piece.tobytes())
    store = engine._loaded.experts
    return found.hexdigest(), None if store is None else read_counters(store.counters)


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "cpu", "ram_budget_gib": 3e-5, "ngram_table": "direct"},
        {"backend": "cpu", "ram_budget_gib": 3e-5, "lookahead": "off", "ngram_table": "ram"},
        {"backend": "sim", "expert_cache": "4", "cpu_share": "0.5"},
        {"backend": "sim", "expert_cache": "8", "ram_budget_gib": 3e-5, "exclusive": "on"},
    ],
)
def test_merged_planes_and_a_draft_file(options):
    wanted, _ = hashes(MERGED, backend="cpu", device="cpu")
    found, counts = hashes(MERGED, device="cpu", **options)
    assert found == wanted
    assert counts["routed_pairs"] == counts["computed_pairs"] > 0
    if "ram_budget_gib" in options:
        assert counts["ram_misses"] > 0


def test_planes_that_touch_share_a_read(model_path):
    """Gate and up of a merged tensor are one read; of tensors apart, each is its own."""
    apart = rig(model_path, budget=0)
    assert apart.counts()["reads"] == 3 * apart.store.native.experts
    case = ALL[MERGED]
    engine = Engine.load(case.model_path, EngineOptions(backend="sim", device="cpu", max_model_len=64))
    store = engine._loaded.experts
    assert read_counters(store.counters)["reads"] <= 2 * store.native.experts


def test_progress_ends_with_all_there(model_path):
    told = []
    store = rig(model_path, budget=0).store
    store.load(lambda done, total: told.append((done, total)))
    assert told[-1] == (store.nbytes, store.nbytes)
    assert told == sorted(told)


def test_an_absurdly_slow_disk_is_worth_a_line(model_path, monkeypatch, caplog):
    """One read hangs until the line has been said."""
    monkeypatch.setattr(expert_store, "_PATIENCE_SECONDS", 0.0)
    file = open_model(model_path)
    store = ExpertStore(expert_layers(models.load(file)), [file], StoreOptions())
    store.native.inject(4, 0)
    with caplog.at_level(logging.WARNING, logger="strata"):
        loading = threading.Thread(target=store.load)
        loading.start()
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        store.native.inject(0, 0)
        loading.join()
    assert len([m for m in caplog.messages if "local SSD" in m]) == 1
    assert store.whole
    assert store.native.fill_error == 0


def test_counters_have_the_headers_names():
    text = (ROOT / "native/include/strata/tiers.h").read_text()
    body = text[text.index("enum Counter") :]
    names = [line.split(",")[0].strip()[1:] for line in body.splitlines()[1:] if line.startswith("  k")]
    snake = ["".join(f"_{c.lower()}" if c.isupper() else c for c in name).strip("_") for name in names]
    assert tuple(snake[:-1]) == NAMES
