"""Damaged files: success or ModelFileError, within memory that the file justifies."""

import os
import struct
import tracemalloc
from pathlib import Path

import gguf_bytes as g
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.errors import ModelFileError
from strata.gguf import TensorType, open_model
from strata.models.summary import lines, summarise

INTERESTING = [
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


def seed_file():
    entries = [
        g.entry("general.architecture", 8, g.string("llama")),
        g.entry("general.name", 8, g.string("seed")),
        g.entry("general.file_type", 4, g.scalar(4, 2)),
        g.entry("llama.block_count", 4, g.scalar(4, 1)),
        g.entry("tokenizer.ggml.tokens", 9, g.array(8, ["a", "b", "ü"])),
        g.entry("scores", 9, g.array(6, [1.0, 2.0])),
        g.entry("nested", 9, g.array(9, [g.array(8, ["x"]), g.array(7, [True, False])])),
        g.entry("yes", 7, b"\1"),
    ]
    records = [
        g.record("token_embd.weight", (64, 3), TensorType.Q8_0, 0),
        g.record("blk.0.attn_q.weight", (64, 2), TensorType.Q4_0, 224),
        g.record("blk.0.ffn_up.weight", (128, 1), TensorType.Q2_0, 320),
    ]
    return g.model_bytes(entries, records, bytes(range(256)) + bytes(100))


SEED = seed_file()


@pytest.fixture
def put():
    """Puts bytes into one file in memory and gives its path; a disk would take far longer."""
    handle = os.memfd_create("fuzz")

    def replace(data):
        os.ftruncate(handle, 0)
        os.pwrite(handle, data, 0)
        return Path(f"/proc/self/fd/{handle}")

    yield replace
    os.close(handle)


def use(path):
    """Touch everything a file offers; true if it was accepted."""
    try:
        with open_model(path) as model:
            for key in model.metadata:
                value = model.metadata[key]
                model.metadata.types(key)
                if hasattr(value, "__len__"):
                    list(value)
            for name, info in model.tensors.items():
                assert model.data(name).nbytes == info.nbytes == info.type.nbytes(info.values)
                int(model.data(name).sum())
            lines(summarise(model))
            return True
    except ModelFileError as error:
        assert "\n" not in str(error)
        return False


def mutate(rng):
    data = bytearray(SEED)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(data)))
        match rng.integers(0, 5):
            case 0:
                data[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                data[at] = int(rng.integers(0, 256))
            case 2:
                data[at:] = struct.pack("<Q", INTERESTING[rng.integers(len(INTERESTING))]) + data[at + 8 :]
            case 3:
                del data[at : at + int(rng.integers(1, 12))]
            case 4:
                del data[max(at, 1) :]
        if not data:
            break
    return bytes(data)


def test_seeded_mutations(put):
    rng = np.random.default_rng(1)
    assert use(put(SEED))
    accepted, tries = 0, 4000
    tracemalloc.start()
    for _ in range(tries):
        accepted += use(put(mutate(rng)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Both outcomes are common, so the mutations reach past the header without being harmless.
    assert tries // 20 < accepted < tries // 2
    assert peak < 4_000_000


def test_every_truncation(put):
    for size in range(1, len(SEED)):
        assert not use(put(SEED[:size]))


@pytest.mark.parametrize("lie", [2**31, 2**32 - 1, 2**60, 2**61, 2**63, 2**64 - 1])
def test_every_eight_bytes_replaced_by_a_huge_number(put, lie):
    """Wherever a count, length, size or offset lies, this is the lie that would allocate or overflow."""
    field = struct.pack("<Q", lie)
    tracemalloc.start()
    for at in range(4, len(SEED) - 360):
        use(put(SEED[:at] + field + SEED[at + 8 :]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


VALUES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([struct.pack("<Q", value) for value in INTERESTING]),
    st.sampled_from([struct.pack("<I", value) for value in range(46)]),
    st.text(max_size=5).map(g.string),
    st.tuples(st.integers(0, 13), st.integers(0, 2**64 - 1)).map(lambda x: struct.pack("<IQ", *x)),
)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(VALUES, max_size=12), counts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_arbitrary_fields_after_a_good_header(put, parts, counts):
    use(put(b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(parts)))
