import hashlib

import pytest

from strata.errors import ModelFileError, UsageError
from strata.gguf import TensorType, write_model
from strata.gguf.verify import verify


@pytest.fixture
def shards(tmp_path):
    paths = []
    for no in range(2):
        paths.append(tmp_path / f"m-{no + 1:05}-of-00002.gguf")
        write_model(paths[-1], {"split.no": no, "split.count": 2}, [(f"t{no}", (4,), TensorType.I8, b"abcd")])
    return paths


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_hashes_every_file(shards):
    result = verify(shards[1])
    assert [(f.path, f.nbytes, f.sha256) for f in result.files] == [
        (p, p.stat().st_size, sha(p)) for p in shards
    ]
    assert result.tensors == 2
    assert verify(shards[1], sha(shards[1]).upper()) == verify(shards[0], [sha(p) for p in shards]) == result


def test_one_changed_byte_is_caught(shards):
    wanted = sha(shards[0])
    data = bytearray(shards[0].read_bytes())
    data[-30] ^= 1  # padding: the structure is still whole
    shards[0].write_bytes(data)
    verify(shards[0])
    with pytest.raises(ModelFileError, match=f"SHA-256 is {sha(shards[0])}, expected {wanted}"):
        verify(shards[0], wanted)


def test_structure_comes_first(shards):
    shards[1].write_bytes(shards[1].read_bytes()[:-32])
    with pytest.raises(ModelFileError, match=r"00002-of-00002.gguf: .* truncated"):
        verify(shards[0], sha(shards[0]))


def test_hashes_that_make_no_sense(shards):
    with pytest.raises(UsageError, match="'abc' is not a SHA-256"):
        verify(shards[0], "abc")
    with pytest.raises(UsageError, match="1 hashes given for 2 files"):
        verify(shards[0], ["0" * 64])
