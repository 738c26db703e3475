"""Session files: damaged and foreign ones are refused and removed, and a process killed while writing leaves none."""

import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
from golden import ALL
from recorded import Recorded

from strata.config import ServingOptions
from strata.engine.session_files import SessionFile, write_session_file
from strata.errors import ModelFileError

KILLS = 50
TURNS = 3


def text(seed, count):
    return np.random.default_rng(seed).integers(0, 120, count).tolist()


def engine(name, directory="", **options):
    return Recorded(
        ALL[name].model_path, ServingOptions(session_dir=str(directory)), threads=1, max_num_seqs=2, **options
    )


def converse(e, seed, turns, said=lambda turn: None):
    """Runs turns of a conversation; returns (prompt, hash) of each."""
    history, found = text(seed, 90), []
    for turn in range(turns):
        digest, answer, _ = e.run(history, 30, turn)
        found.append((history, digest))
        history = history + answer + text(seed + 1 + turn, 25)
        said(turn)
        while e.engine.has_work:
            e.engine.step()
    return found


def files(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_body_is_given_as_it_was_written(tmp_path):
    path = tmp_path / "a.cells"
    write_session_file(path, {"model": "m", "digest": "00"}, np.arange(1000, dtype=np.uint8))
    assert bytes(SessionFile.open(path, "m").read()) == np.arange(1000, dtype=np.uint8).tobytes()
    data = path.read_bytes()
    cases = {
        "does not begin with its mark": b"GGUF" + data[4:],
        "version 9": data[:8] + b"\x09" + data[9:],
        f"{len(data) - 1} bytes; its header says {len(data)}": data[:-1],
        "its header has changed": data[:40] + b"?" + data[41:],
        "its bytes have changed": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    }
    for message, bad in cases.items():
        path.write_bytes(bad)
        with pytest.raises(ModelFileError, match=message):
            SessionFile.open(path, "m").read()
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="another model"):
        SessionFile.open(path, "other")


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_a_conversation_is_found_again(name, tmp_path):
    (_, _), (prompt, want) = converse(engine(name), 1, 2)
    e = engine(name, tmp_path)
    converse(e, 1, 1)
    e.engine.close()
    again = engine(name, tmp_path)
    digest, _, request = again.run(prompt, 30, 1)
    assert (digest, request.num_cached_tokens) == (want, 119)
    again.engine.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "foreign", "other model"])
@pytest.mark.parametrize("suffix", [".cells", ".state"])
def test_damaged_files_are_removed_and_not_used(suffix, damage, tmp_path):
    e = engine("qwen35", tmp_path)
    (_, _), (prompt, _) = converse(e, 1, 2)
    e.engine.close()
    cold = engine("qwen35").run(prompt, 30, 1)[0]
    hit = [path for path in files(tmp_path) if path.suffix == suffix]
    assert hit
    for path in hit:
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[-7] ^= 4
        if damage == "other model":
            data = data.replace(b'"model": "', b'"model": "0', 1)[:-1]
        path.write_bytes({"cut": data[:-1], "foreign": b"notes"}.get(damage, data))
    again = engine("qwen35", tmp_path)
    digest, _, request = again.run(prompt, 30, 1)
    assert (digest, request.num_cached_tokens) == (cold, 0)
    again.engine.close()
    kept = {path: path.read_bytes() for path in files(tmp_path)}
    assert not any(data == b"notes" for data in kept.values())
    for path in kept:
        SessionFile.open(
            path, path.parent.name and engine("qwen35", tmp_path).engine._store._disk._model
        ).read()


def test_strange_files_in_the_directory_go(tmp_path):
    engine("llama", tmp_path).engine.close()
    (directory,) = tmp_path.iterdir()
    for name in ("note.txt", "a.cells", "b.cells.part"):
        (directory / name).write_bytes(b"hello")
    outside = tmp_path / "note.txt"
    outside.write_bytes(b"mine")
    engine("llama", tmp_path).engine.close()
    assert files(tmp_path) == [outside], "only in the model's own directory"


def test_the_space_is_kept_to(tmp_path):
    e = Recorded(ALL["llama"].model_path, ServingOptions(session_dir=str(tmp_path), session_mib=0), threads=1)
    converse(e, 1, 3)
    e.engine.step()
    e.engine.close()
    assert files(tmp_path) == []


def child(name, directory, ready, model_engine=engine):
    """Converses and writes until it is killed."""
    e = model_engine(name, directory)
    for seed in range(0, 400, 100):
        converse(e, seed, TURNS, lambda turn: os.write(ready, b"."))
    os._exit(0)


def killed_at_random(name, directory, turns, delay):
    """A process that converses, killed `delay` seconds after so many turns."""
    begun, ready = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            child(name, directory, ready)
        finally:
            os._exit(1)
    os.close(ready)
    for _ in range(turns):
        assert os.read(begun, 1) == b"."
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(begun)


def after(name, seed, turns, prompt, seed_of_turn):
    """The hash of a prompt's answer when the conversation's first `turns` turns were live."""
    e = engine(name)
    converse(e, seed, turns)
    return e.run(prompt, 30, seed_of_turn)[0]


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_killed_while_writing(name, tmp_path):
    """It starts again each time, and what it goes on from is the right state, however much of it there is."""
    prompts = [prompt for prompt, _ in converse(engine(name), 0, TURNS)]
    right = {turns: after(name, 0, turns, prompts[-1], TURNS - 1) for turns in range(TURNS)}
    lived = {119: 1, 128: 1, 174: 2, 192: 2}  # turns that were live up to where checkpoints lie
    chance, known = random.Random(3), set()
    for i in range(KILLS // 2):
        killed_at_random(name, tmp_path / "written", 1 + i % TURNS, chance.uniform(0, 0.03))
        copy = shutil.copytree(tmp_path / "written", tmp_path / str(i))
        e = engine(name, copy)
        digest, _, request = e.run(prompts[-1], 30, TURNS - 1)
        known.add(request.num_cached_tokens)
        assert digest == right[lived.get(request.num_cached_tokens, 0)], request.num_cached_tokens
        e.engine.close()
        if chance.random() < 0.7:
            shutil.rmtree(tmp_path / "written")
    assert len(known) > 1, "killed at different points"
