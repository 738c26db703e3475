import pytest

import gguf
from strata.gguf import TensorType


def test_ids_and_sizes_agree_with_the_gguf_package():
    theirs = {kind.name: (int(kind), *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {kind.name: (int(kind), kind.block_values, kind.block_bytes) for kind in TensorType}
    assert set(theirs) - set(ours) == {"Q8_1", "Q8_K"}  # activation formats, never stored
    assert set(ours) - set(theirs) == {"Q2_0"}
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }


def test_lookup_by_id_and_byte_counts():
    assert TensorType(42) is TensorType.Q2_0
    assert TensorType.Q4_K.nbytes(512) == 288
    assert TensorType.Q4_K.bits == 4.5
    with pytest.raises(ValueError, match="300 values are not whole Q4_K blocks of 256"):
        TensorType.Q4_K.nbytes(300)
    with pytest.raises(ValueError):
        TensorType(36)
