"""Types by tensor name, and errors weighed by activations."""

from pathlib import Path

import numpy as np
import pytest
from checkpoints import GOLDENS

from strata.convert import plan_conversion
from strata.convert.activations import Activations
from strata.convert.types import encoded, parse_override
from strata.errors import ModelFileError, UsageError
from strata.gguf import TensorType, open_model
from strata.quants import FORMATS

DIRECTORY = GOLDENS / "checkpoint-qwen4exp"
DOWN = "blk.0.ffn_down_exps.weight"


def squares(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_the_first_pattern_that_fits_counts(tmp_path):
    overrides = ["blk.0.ffn_down*=Q4_0", "*ffn_down_exps*=Q5_1", "*ffn_down_exps*=Q8_0"]
    plan_conversion(DIRECTORY, "Q8_0", overrides=overrides).write(tmp_path / "model.gguf")
    found = open_model(tmp_path / "model.gguf").tensors
    assert found[DOWN].type is TensorType.Q4_0
    assert found["blk.1.ffn_down_exps.weight"].type is TensorType.Q5_1
    assert found["blk.1.ffn_up_exps.weight"].type is TensorType.Q8_0


def test_the_file_is_named_after_most_of_its_weights():
    assert plan_conversion(DIRECTORY, "Q8_0").metadata["general.file_type"] == 7
    assert plan_conversion(DIRECTORY, "Q8_0", overrides=["*=F16"]).metadata["general.file_type"] == 1


@pytest.mark.parametrize("text", ["Q8_0", "=Q8_0", "*=", "*=Q9"])
def test_malformed_overrides_are_refused(text):
    with pytest.raises(UsageError, match="--tensor-type"):
        parse_override(text)


def test_rows_that_blocks_do_not_fill_are_refused():
    with pytest.raises(UsageError, match=r"blk\.0\.ffn_down_exps.* not whole blocks of 256 \(IQ3_XXS\)"):
        plan_conversion(DIRECTORY, "Q8_0", overrides=["*ffn_down_exps*=IQ3_XXS"])


def test_weights_follow_the_experts(tmp_path):
    """Each expert's own squares weigh its rows, however the pieces are cut; a wrong order would be seen."""
    plan = plan_conversion(DIRECTORY, "Q8_0", overrides=["*ffn_down_exps*=IQ4_NL"])
    tensor, kind = next(pair for pair in plan.tensors if pair[0].name == DOWN)
    experts, rows, k = tensor.rows.shape
    given = np.random.default_rng(1).gamma(0.3, size=(experts, k)).astype(np.float32)
    plan_conversion(
        DIRECTORY, "Q8_0", False, ["*ffn_down_exps*=IQ4_NL"], squares(tmp_path / "a.npz", **{DOWN: given})
    ).write(tmp_path / "model.gguf")
    written = open_model(tmp_path / "model.gguf").data(DOWN).reshape(experts, rows, -1)
    values = np.concatenate([p.reshape(-1, k) for p in tensor.rows.pieces()]).reshape(experts, rows, k)
    expected = [FORMATS[kind.name].encode(v, g / g.mean()) for v, g in zip(values, given, strict=True)]
    assert np.array_equal(written, expected)
    assert not np.array_equal(written, [FORMATS[kind.name].encode(v, given[0]) for v in values])


def test_pieces_of_any_size_take_their_own_weights():
    x = np.random.default_rng(2).normal(size=(6, 64)).astype(np.float32)
    weights = np.random.default_rng(3).gamma(0.3, size=(6, 64)).astype(np.float32)
    whole = np.concatenate(list(encoded(TensorType.Q2_0, iter([x]), 2, weights)))
    cut = np.concatenate(list(encoded(TensorType.Q2_0, iter([x[:1], x[1:5], x[5:]]), 2, weights)))
    assert np.array_equal(whole, cut)


def test_activations_that_fit_nothing_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"1 arrays belong to no tensor: blk\.0\.nothing"):
        plan_conversion(
            DIRECTORY, "Q8_0", activations=squares(tmp_path / "a.npz", **{"blk.0.nothing": np.ones(4)})
        )
    plan = plan_conversion(DIRECTORY, "Q8_0")
    tensor = next(tensor for tensor, _ in plan.tensors if tensor.name == DOWN)
    for wrong in (np.ones(3), np.full(tensor.rows.shape[-1], -1.0)):
        with pytest.raises(UsageError, match="cannot take"):
            Activations(squares(tmp_path / "b.npz", **{DOWN: wrong})).of(tensor)
    (tmp_path / "c.npz").write_text("no archive")
    with pytest.raises(ModelFileError, match=r"not a \.npz file"):
        Activations(tmp_path / "c.npz")
