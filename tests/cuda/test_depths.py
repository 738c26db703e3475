"""Long contexts: a block whose key answers the query is found at any depth and read, one that is not selected is not;
and a context holds as many tokens as it says."""

from dataclasses import replace

import numpy as np
import pytest

import models.driver
from models.driver import Driver, Rows
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.errors import ContextLengthError
from strata.ops.select_blocks import BlockScores, RankBlocks, SelectBlocks
from strata.synth import TinyOptions, tiny_geometry, write_tiny

MOST = 262_144
RATIO, PAGE_BLOCKS = 4, 16


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A delta layer and one of attention that reads 8 blocks of 4 cells, at head widths that tensor cores take."""
    path = tmp_path_factory.mktemp("deep") / "model.gguf"
    few = {"num_layers": 2, "interval": 2, "ngram_layer": 0, "num_experts": 4, "num_experts_per_tok": 2}
    heads = {"head_dim": 64, "index_dim": 64, "index_heads": 1, "index_budget": 32}
    write_tiny(path, TinyOptions(replace(tiny_geometry("qwen4exp"), max_position=MOST, **few, **heads)))
    return path


class Deep:
    """A model whose last rows stand at the end of `depth` cells that nobody computed: they are drawn at random. A chunk
    has 64 rows and reads cells by way of the stage; a step has one, and `resident` cells in slots."""

    def __init__(self, path, depth, form, backend, monkeypatch):
        monkeypatch.setattr(models.driver, "CHUNK", 64)
        monkeypatch.setattr(models.driver, "ROWS", 1)
        self.form, rows = form, 64 if form == "chunk" else 1
        self.driver = d = Driver(path, backend, "int8", 1, 2, resident=256, staged=True, max_len=depth)
        self.rows = Rows(0, depth - rows, list(range(1, rows + 1)))
        self.pages = d.pages.grow(0, depth)
        self.layer, self.keys = d.state.kv.layers[0], d.state.index[0].pooled
        random = np.random.default_rng(5)
        for buffer in d.state.paged():
            whole = random.integers(-99, 100, (64, *buffer.shape[1:]))
            drawn = (
                np.abs(whole) * 1e-4
                if "scales" in buffer.name
                else whole * (1 if buffer.dtype == "i8" else 0.01)
            )
            dtype = np.asarray(d.at(buffer)[:1]).dtype
            d.at(buffer)[:] = np.resize(drawn.astype(dtype), buffer.shape)
        self.replay, program = (d._chunk, d.programs[1]) if form == "chunk" else (d._step, d.programs[0])
        self.program = program

    def run(self):
        """Logits of the last row."""
        read = self.driver.chunk if self.form == "chunk" else self.driver.step
        return read(self.rows)[-1]

    def at(self, kind):
        return next((i, op) for i, op in enumerate(self.program.ops) if isinstance(op, kind))

    def query(self):
        """What the last row asks for, [index dim]."""
        at, op = self.at(RankBlocks if self.form == "chunk" else BlockScores)
        self.driver._write([self.rows])
        self.replay.run(0, at)
        return self.replay.peek(op.q)[len(self.rows.tokens) - 1]

    def selected(self):
        """Blocks that the last row reads."""
        at, op = self.at(RankBlocks if self.form == "chunk" else SelectBlocks)
        self.driver._write([self.rows])
        self.replay.run(0, at + 1)
        return self.replay.peek(op.out)[len(self.rows.tokens) - 1].tolist()

    def plant(self, block, key):
        page = self.pages[block // PAGE_BLOCKS]
        keys = np.array(self.driver.at(self.keys)[page])
        keys[block % PAGE_BLOCKS] = key
        self.driver.at(self.keys)[page] = keys

    def answer(self, block):
        """Logits with other values in a block's cells."""
        page, first = self.pages[block // PAGE_BLOCKS], block % PAGE_BLOCKS * RATIO
        values = np.array(self.driver.at(self.layer.v)[page])
        changed = values.copy()
        changed[:, first : first + RATIO] = -changed[:, first : first + RATIO] // 2 - 9
        self.driver.at(self.layer.v)[page] = changed
        table, clock = (self.driver.at(b) for b in (self.layer.resident.table, self.layer.resident.clock))
        table[:], clock[:] = 0, 0  # what lies in slots is what was there before
        found = self.run()
        self.driver.at(self.layer.v)[page] = values
        return found


def look(path, depth, form, backend, monkeypatch, answers=3):
    deep = Deep(path, depth, form, backend, monkeypatch)
    query = deep.query()
    assert np.linalg.norm(query) > 0
    blocks = depth // RATIO
    planted = [1, blocks // 2, blocks - 20]
    for block in planted:
        deep.plant(block, 10 * query)
    selected = deep.selected()
    assert set(planted) <= set(selected) and sorted(selected) == selected
    plain = deep.run()
    for block in planted[:answers]:
        assert not np.array_equal(deep.answer(block), plain), (depth, block)
    far = next(b for b in range(blocks // 3, blocks) if b not in selected)
    assert np.array_equal(deep.answer(far), plain)


@pytest.mark.parametrize(
    ("depth", "form", "answers"), [(1024, "chunk", 1), (16384, "step", 3), (MOST, "step", 3)]
)
def test_a_planted_block_is_found(path, depth, form, answers, backend, monkeypatch):
    """docs/measurements.md has chunks at all depths: here they would take minutes."""
    look(path, depth, form, backend(), monkeypatch, answers)


def test_a_context_holds_what_it_says(path):
    """One token less, as many, and one more."""
    options = EngineOptions(device="cpu", threads=2, max_model_len=MOST, kv="int8", prefill=64)
    engine = Engine.load(path, options)
    for count in (MOST - 1, MOST):
        request = engine.add([1] * count, SamplingParams(max_tokens=9))
        assert request.num_tokens == count and request.sampling.max_tokens == 1
    with pytest.raises(ContextLengthError, match=f"{MOST + 1} tokens; a context holds at most {MOST}"):
        engine.add([1] * (MOST + 1), SamplingParams(max_tokens=9))
