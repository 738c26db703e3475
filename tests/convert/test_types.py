"""Types by purpose and row length, and what is in the blocks."""

import numpy as np
import pytest
from checkpoints import GOLDENS, read_tensors, taken_back, write_checkpoint

from strata.convert import TYPES, plan_conversion
from strata.convert.checkpoint import Checkpoint
from strata.convert.config import read_config
from strata.convert.families import find_family
from strata.convert.metadata import architecture_metadata
from strata.convert.ngram import head_sizes, layer_multipliers
from strata.convert.rows import Plane, Planned, Rows
from strata.convert.types import choose_type, encoded
from strata.errors import UsageError
from strata.gguf import TensorType, open_model
from strata.quants import FORMATS


def chosen(plane: Plane, k: int, wanted: str, ndim: int = 2) -> str:
    return choose_type(Planned("x", plane, Rows((), (*[4] * (ndim - 1), k), lambda: iter([]))), wanted).name


@pytest.mark.parametrize(
    ("plane", "k", "wanted", "expected"),
    [
        (Plane.EXPERT, 2560, "Q4_K", "Q4_K"),
        (Plane.EXPERT, 640, "Q4_K", "IQ4_NL"),  # rows of 640 are not whole blocks of 256
        (Plane.EXPERT, 640, "Q6_K", "Q8_0"),
        (Plane.EXPERT, 640, "Q2_0", "Q2_0"),
        (Plane.EXPERT, 96, "Q2_0", "IQ4_NL"),
        (Plane.EXPERT, 40, "Q5_1", "BF16"),
        (Plane.DENSE, 2560, "Q4_1", "Q4_1"),
        (Plane.HEAD, 2560, "Q4_K", "Q6_K"),
        (Plane.HEAD, 2560, "Q8_0", "Q8_0"),
        (Plane.HEAD, 96, "Q2_0", "Q8_0"),
        (Plane.MIXER, 10240, "Q4_0", "Q8_0"),
        (Plane.MIXER, 10240, "BF16", "BF16"),
        (Plane.TABLE, 160, "Q2_0", "IQ4_NL"),
        (Plane.TABLE, 160, "Q6_K", "Q8_0"),
        (Plane.TABLE, 160, "Q5_0", "Q5_0"),
        (Plane.INDEXER, 2560, "Q4_K", "BF16"),
        (Plane.INDEXER, 2560, "F32", "F32"),
        (Plane.FLOAT, 2560, "Q8_0", "F32"),
    ],
)
def test_type_of_a_tensor(plane, k, wanted, expected):
    assert chosen(plane, k, wanted) == expected


def test_vectors_stay_f32():
    assert chosen(Plane.DENSE, 2560, "Q8_0", ndim=1) == "F32"


@pytest.mark.parametrize("wanted", TYPES)
def test_blocks_are_those_of_the_encoder(wanted, tmp_path):
    directory = write_checkpoint(tmp_path / "hf", *taken_back("qwen3moe"))
    plan_conversion(directory, wanted.lower()).write(tmp_path / "out.gguf", threads=2)
    exact = read_tensors(GOLDENS / "qwen3moe" / "model.gguf")
    with open_model(tmp_path / "out.gguf") as file:
        for name, info in file.tensors.items():
            expected = FORMATS[info.type.name].encode(exact[name])
            assert np.array_equal(file.data(name), expected.reshape(-1)), name
        kinds = {info.type.name for info in file.tensors.values()}
    assert len(kinds) > 1 or wanted == "F32"


def test_pieces_stay_in_order():
    x = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    out = b"".join(piece.tobytes() for piece in encoded(TensorType.F32, iter(np.split(x, 16)), 3))
    assert out == x.tobytes()


def test_a_value_that_is_not_finite_is_refused(tmp_path):
    config, tensors = taken_back("qwen3moe")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].copy()
    tensors["lm_head.weight"][3, 5] = np.nan
    plan = plan_conversion(write_checkpoint(tmp_path / "hf", config, tensors), "Q8_0")
    with pytest.raises(UsageError, match="1 of"):
        plan.write(tmp_path / "out.gguf")
    assert not list(tmp_path.glob("out.gguf*"))


def test_hash_constants_are_those_of_the_published_model():
    assert layer_multipliers(248320, 3, 1234) == [23703573157769, 20109073645365, 8052911324071]
    sizes = head_sizes(20_000_000, 16)
    assert (sizes[0], sizes[-1], sum(sizes)) == (20_000_003, 20_000_171, 320_001_446)


def test_hash_constants_are_derived_where_the_checkpoint_lacks_them(tmp_path):
    stored = GOLDENS / "checkpoint-qwen4exp"
    config = read_config(stored)
    directory = write_checkpoint(tmp_path / "hf", dict(config.values), {"x": np.zeros(1, np.float32)})
    found = [
        architecture_metadata(find_family(config), config, Checkpoint(where), True)
        for where in (stored, directory)
    ]
    assert found[0] == found[1]
