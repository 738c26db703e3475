"""Absurd numbers in a file end in a line that names the key, at load, before memory is taken."""

import numpy as np
import pytest
from edit_model import edit_model
from golden import ALL

from strata import models
from strata.errors import ModelFileError
from strata.gguf import open_model
from strata.ops import RopeScaling, rope_frequencies, rope_table

NAN, INF = float("nan"), float("inf")
ABSURD = [
    ("block_count", 0),
    ("context_length", 0),
    ("context_length", 2**24 + 1),
    ("context_length", 2**32 - 1),
    ("embedding_length", 0),
    ("attention.head_count", 0),
    ("attention.head_count_kv", 0),
    ("attention.layer_norm_rms_epsilon", -1.0),
    ("attention.layer_norm_rms_epsilon", NAN),
    ("attention.layer_norm_rms_epsilon", INF),
    ("rope.dimension_count", 7),
    ("rope.dimension_count", 1000),
    ("rope.freq_base", 0.0),
    ("rope.freq_base", 1.0),
    ("rope.freq_base", -5.0),
    ("rope.freq_base", NAN),
    ("rope.freq_base", INF),
]
SCALING = [("factor", 0.0), ("factor", NAN), ("original_context_length", 0), ("attn_factor", -1.0)]


def refused(path, key):
    with pytest.raises(ModelFileError) as error:
        models.load(open_model(path))
    assert key.rpartition(".")[2] in str(error.value)


@pytest.mark.parametrize(("key", "value"), ABSURD)
def test_absurd_numbers(tmp_path, key, value):
    if key == "rope.dimension_count":
        path = edit_model(ALL["llama"].model_path, tmp_path / "m.gguf", metadata={key: value})
        with pytest.raises(ModelFileError, match=f"rope rotates {value} values"):
            models.load(open_model(path))
        return
    refused(edit_model(ALL["llama"].model_path, tmp_path / "m.gguf", metadata={key: value}), key)


@pytest.mark.parametrize(("key", "value"), SCALING)
@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_absurd_scaling(tmp_path, name, key, value):
    key = f"rope.scaling.{key}"
    changes = {"rope.scaling.type": "yarn", key: value}
    refused(edit_model(ALL[name].model_path, tmp_path / "m.gguf", metadata=changes), key)


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "qwen35", "qwen4exp"])
def test_scaling_reaches_past_the_trained_context(tmp_path, name):
    trained = models.load(open_model(ALL[name].model_path)).config.rope.max_position
    changes = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    path = edit_model(ALL[name].model_path, tmp_path / "m.gguf", metadata=changes)
    assert models.load(open_model(path)).config.rope.max_position == 4 * trained


def test_a_rope_table_is_the_same_at_the_borders_of_its_parts():
    table = rope_table(9000, 8, 1e4, RopeScaling()).data
    frequencies, _ = rope_frequencies(8, 1e4, RopeScaling())
    for position in (0, 1, 4095, 4096, 8191, 8192, 8999):
        angles = position * frequencies
        want = np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
        assert np.array_equal(table[position], want)
        assert not np.array_equal(table[position - 1], want)
