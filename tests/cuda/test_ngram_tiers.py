"""Rows of the n-gram table that is no weight on the device: one hash wherever they come from, ids known to the device
alone, and stores that fail or do not answer."""

import hashlib
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from emulated_driver import EmulatedDriver

from strata.backends.cuda import CudaBackend
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams, tiering
from strata.engine.ahead import RunAhead
from strata.engine.load import load_model
from strata.errors import DeviceError, FaultError
from strata.memory.ngram_store import NgramOptions, open_table

PATH = Path(__file__).parents[1] / "goldens" / "qwen4exp" / "model.gguf"
TASKS = Path("/proc/self/task")  # of this process
POSTS = 9  # of the arguments of table_rows


def engine(backend, mode="auto", **more):
    settings = {"device": "cpu", "prefill": 0, "max_model_len": 128, "ngram_table": mode, **more}
    return Engine(load_model(PATH, EngineOptions(**settings), None, backend))


def hash_of(engine, tokens):
    rows = np.concatenate(list(engine.logits(tokens)))
    return hashlib.sha256(rows.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def want():
    tokens = np.load(PATH.with_name("tokens.npy")).tolist()[:24]
    cpu = Engine.load(PATH, EngineOptions(device="cpu", prefill=0, max_model_len=128))
    return tokens, hash_of(cpu, tokens)


@pytest.mark.parametrize("mode", ["ram", "map", "direct"])
def test_one_hash_from_every_place(mode, want, backend):
    tokens, wanted = want
    made = backend()
    assert hash_of(engine(made, mode), tokens) == wanted
    assert bool(made._tables._asked) == (mode != "ram")


def test_a_table_that_cannot_be_page_locked_is_asked_for(want, backend, monkeypatch, caplog):
    tokens, wanted = want
    made = backend()

    def refuse(address, nbytes):
        raise DeviceError("no")

    monkeypatch.setattr(made.driver, "register", refuse)
    assert hash_of(engine(made, "ram"), tokens) == wanted
    assert "its rows are asked for instead (no)" in caplog.text


@pytest.mark.parametrize("mode", ["ram", "direct"])
def test_tokens_that_only_the_device_knows(mode, backend, monkeypatch):
    """The next forward is started before its tokens are read: it asks for their rows itself."""
    taken = []
    meet = RunAhead.meet

    def spy(self, plan):
        meet(self, plan)
        taken.append(self.taken)

    monkeypatch.setattr(RunAhead, "meet", spy)

    def play(e):
        sampling = [SamplingParams(max_tokens=12, temperature=0.8, seed=s, ignore_eos=True) for s in (1, 2)]
        requests = [e.add([5 + i, 9, 11], s) for i, s in enumerate(sampling)]
        while any(r.finish_reason is None for r in requests):
            e.step()
        return [r.output_token_ids for r in requests]

    wanted = play(
        Engine.load(PATH, EngineOptions(device="cpu", prefill=0, max_model_len=128, max_num_seqs=2))
    )
    taken.clear()
    assert play(engine(backend(), mode, max_num_seqs=2)) == wanted
    assert sum(taken) > 6


@pytest.fixture
def stored(backend, monkeypatch):
    """A backend, an engine whose table is read directly with a short limit, and the store."""
    found = []

    def opened(*args):
        found.append(open_table(*args))
        return found[-1]

    monkeypatch.setattr(tiering, "open_table", opened)
    monkeypatch.setattr(
        tiering, "NgramOptions", lambda mode: NgramOptions(mode, cache_bytes=1, wait_seconds=1)
    )
    made = backend()
    return made, engine(made, "direct"), found[0]


def test_rows_that_cannot_be_read(stored, want):
    tokens, wanted = want
    _, e, store = stored
    assert hash_of(e, tokens) == wanted
    store.inject(2, 0)
    with pytest.raises(FaultError, match="n-gram table cannot be read: Input/output error"):
        hash_of(e, tokens)
    assert hash_of(e, tokens) == wanted


def test_a_store_that_does_not_answer(stored, want):
    """The device waits for a request that nobody will serve: the limit ends the step, and the next one works."""
    tokens, wanted = want
    made, e, _ = stored
    assert hash_of(e, tokens[:3]) != wanted
    launches = e._runner.programs.of("step", len(tokens)).replay.launches
    posts = int(next(node.args[POSTS] for node in launches if node.kernel.entry == "table_rows"))
    count = np.zeros(1, np.uint32)
    made.driver.download(posts, count)
    made.driver.upload(posts, count + 7)
    begin = monotonic()
    with pytest.raises(FaultError, match="did not answer in time"):
        hash_of(e, tokens)
    assert monotonic() - begin >= 1
    made.driver.upload(posts, count)
    assert hash_of(e, tokens) == wanted


class Unmapping(EmulatedDriver):
    """What the host shares with the device is gone once it is closed, as with a context."""

    def close(self):
        for memory in self._memory:
            memory.free()
        self._memory.clear()


def test_a_device_that_is_closed_takes_no_polled_memory_away():
    """A store that still looked at its mailbox would end this process."""
    made = engine(CudaBackend(Unmapping(), slab_bytes=1 << 20), "map")
    assert len(list(made.generate([3, 5, 7], SamplingParams(max_tokens=2)))) == 2
    tasks = len(list(TASKS.iterdir()))
    made.close()
    assert len(list(TASKS.iterdir())) < tasks
    sleep(0.02)  # ten naps
