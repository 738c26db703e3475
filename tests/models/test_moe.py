"""The mixture-of-experts half of a block, from files of every family, against the oracle; and what it refuses."""

import numpy as np
import pytest
from edit_model import edit_model, f32, floats
from golden import ALL
from harness import Case, contract, float_reference, nrmse, on_every_level, output, same_bits

from oracles import Model
from oracles.mlp import feed_forward
from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import TensorType, open_model
from strata.models.moe import MoeConfig, MoeWeights
from strata.models.weights import WeightReader
from strata.ops.elementwise import Add
from strata.quants import FORMATS

FILES = [
    "qwen3moe",
    "qwen3moe-quantised",
    "qwen35moe",
    "qwen35moe-quantised",
    "qwen4exp",
    "qwen3next-quantised",
]


def moe_case(path, prefix="blk.0.", rows=7):
    """The block's feed-forward half on random rows; also those rows."""
    file = open_model(path)
    hidden = file.tensors[f"{prefix}ffn_gate_inp.weight"].ne[0]
    moe = MoeConfig.read(file, file.get("general.architecture", str)).load(WeightReader(file), prefix, hidden)
    x = np.random.default_rng(3).standard_normal((rows, hidden)).astype(np.float32)

    def make():
        case = Case(rows)
        y = moe.forward(case.builder, case.input(x))
        out = output(rows, hidden, case.steps)
        case.builder.emit(Add(y, case.input(np.zeros_like(x), "zero"), out))
        return case, out

    return make, x


@pytest.mark.parametrize("name", FILES)
def test_the_oracle_agrees(name):
    path = ALL[name].model_path
    make, x = moe_case(path)
    exact = float_reference(make)
    assert nrmse(exact, feed_forward(Model(path), 0, x.astype(np.float64), None)) < 1e-5
    assert nrmse(exact, feed_forward(Model(path), 1, x.astype(np.float64), None)) > 0.1, (
        "another block must show"
    )
    want = contract(make)
    assert nrmse(want, exact) < (0.06 if "quantised" in name else 1e-5)
    for label, got in on_every_level(make):
        assert same_bits(got, want), label


SHARED = ["ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"]
ROUTED = ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]


@pytest.mark.parametrize("plane", ROUTED + SHARED)
def test_every_tensor_counts(tmp_path, plane):
    name = f"blk.0.{plane}.weight"
    path = ALL["qwen35moe"].model_path
    changed = floats(path, name)[..., ::-1].copy()
    other = edit_model(path, tmp_path / "m.gguf", {name: f32(changed)})
    assert nrmse(float_reference(moe_case(other)[0]), float_reference(moe_case(path)[0])) > 0.01


@pytest.mark.parametrize("name", ["qwen3moe", "qwen3moe-quantised"])
def test_merged_gate_and_up(tmp_path, name):
    path = ALL[name].model_path
    file = open_model(path)
    gate, up = (file.tensors[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    assert gate.type is up.type
    hidden, inner, experts = gate.ne
    raw = [file.data(f"blk.0.ffn_{part}_exps.weight").reshape(experts, -1) for part in ("gate", "up")]
    merged = np.ascontiguousarray(np.concatenate(raw, axis=1)).reshape(-1)
    joined = edit_model(
        path,
        tmp_path / "m.gguf",
        {
            "blk.0.ffn_gate_exps.weight": None,
            "blk.0.ffn_up_exps.weight": None,
            "blk.0.ffn_gate_up_exps.weight": ((hidden, 2 * inner, experts), gate.type, merged),
        },
    )
    assert same_bits(contract(moe_case(joined)[0]), contract(moe_case(path)[0]))


def test_nvfp4_experts_with_scales(tmp_path):
    path = ALL["qwen3moe-quantised"].model_path
    g, tensors, planes = np.random.default_rng(4), {}, {}
    fmt = FORMATS["NVFP4"]
    for part in ("gate", "up"):
        name = f"blk.0.ffn_{part}_exps"
        ne = open_model(path).tensors[f"{name}.weight"].ne
        blocks = g.integers(0, 256, (int(np.prod(ne)) // 64, fmt.block_bytes), dtype=np.uint8)
        blocks[:, :4] = g.integers(0x10, 0x40, (len(blocks), 4))
        scale = g.uniform(0.5, 2, ne[2]).astype(np.float32)
        tensors[f"{name}.weight"], tensors[f"{name}.scale"] = (
            (ne, TensorType.NVFP4, blocks.reshape(-1)),
            f32(scale),
        )
        planes[f"{name}.weight"] = fmt.decode(blocks.reshape(-1)).reshape(ne[::-1]) * scale[:, None, None]
    made = edit_model(path, tmp_path / "m.gguf", tensors)
    make, x = moe_case(made)
    model = Model(made)
    model.overrides = planes
    assert nrmse(float_reference(make), feed_forward(model, 0, x.astype(np.float64), None)) < 1e-5
    for label, got in on_every_level(make):
        assert same_bits(got, contract(make)), label
    without = edit_model(
        made, tmp_path / "n.gguf", {f"blk.0.ffn_{part}_exps.scale": None for part in ("gate", "up")}
    )
    assert nrmse(float_reference(moe_case(without)[0]), float_reference(make)) > 0.05


def test_weights_need_not_be_renormalised(tmp_path):
    path = ALL["qwen3moe"].model_path
    shares = edit_model(path, tmp_path / "m.gguf", metadata={"expert_weights_norm": False})
    plain, renormalised = (float_reference(moe_case(p)[0]) for p in (shares, path))
    ratio = plain / renormalised
    assert np.allclose(ratio, ratio[:, :1], atol=1e-4)
    assert (ratio < 0.99).all()


def cut(path, name, count):
    """A spec of the first `count` experts of a tensor."""
    values = floats(path, name)
    return f32(values[:count])


FAULTS = {
    "no router": (
        lambda p: {"blk.0.ffn_gate_inp.weight": None},
        {},
        r"tensor blk\.0\.ffn_gate_inp\.weight is missing",
    ),
    "no down": (
        lambda p: {"blk.0.ffn_down_exps.weight": None},
        {},
        r"tensor blk\.0\.ffn_down_exps\.weight is missing",
    ),
    "fewer experts in up": (
        lambda p: {"blk.0.ffn_up_exps.weight": cut(p, "blk.0.ffn_up_exps.weight", 6)},
        {},
        r"ffn_up_exps\.weight has shape \[6, 32, 32\], expected \[8, 32, 32\]",
    ),
    "fewer experts in the router": (
        lambda p: {"blk.0.ffn_gate_inp.weight": cut(p, "blk.0.ffn_gate_inp.weight", 6)},
        {"expert_count": 6},
        r"ffn_gate_exps\.weight has shape \[8, 32, 32\], expected \[6, 'any', 32\]",
    ),
    "another count in the metadata": (
        lambda p: {},
        {"expert_count": 9},
        r"ffn_gate_inp\.weight has 8 experts, the metadata says 9",
    ),
    "more a token than there are": (
        lambda p: {},
        {"expert_used_count": 9},
        r"9 experts a token of the 8 in tensor blk\.0\.ffn_gate_inp\.weight",
    ),
    "odd rows in a merged tensor": (
        lambda p: {"blk.0.ffn_gate_up_exps.weight": f32(np.zeros((8, 63, 32)))},
        {},
        r"ffn_gate_up_exps\.weight has 63 rows an expert",
    ),
    "inner widths": (
        lambda p: {"blk.0.ffn_down_exps.weight": f32(np.zeros((8, 32, 64)))},
        {},
        r"ffn_down_exps\.weight has shape \[8, 32, 64\], expected \[8, 32, 32\]",
    ),
    "scales": (
        lambda p: {"blk.0.ffn_down_exps.scale": f32(np.ones(7))},
        {},
        r"ffn_down_exps\.scale has shape \[7\], expected \[8\]",
    ),
    "no up of the shared expert": (
        lambda p: {"blk.0.ffn_up_shexp.weight": None},
        {},
        r"tensor blk\.0\.ffn_up_shexp\.weight is missing",
    ),
    "shared gate as a matrix": (
        lambda p: {"blk.0.ffn_gate_inp_shexp.weight": f32(np.zeros((2, 32)))},
        {},
        r"ffn_gate_inp_shexp\.weight has shape \[2, 32\], expected \[32\]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_named(tmp_path, fault):
    tensors, metadata, words = FAULTS[fault]
    path = ALL["qwen35moe" if "shared" in fault else "qwen3moe"].model_path
    made = edit_model(path, tmp_path / "m.gguf", tensors(path), metadata)
    file = open_model(made)
    config = MoeConfig.read(file, file.get("general.architecture", str))
    with pytest.raises(ModelFileError, match=words) as caught:
        config.load(WeightReader(file), "blk.0.", 32)
    assert str(made) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_type_without_kernels_is_named(tmp_path):
    name = "blk.0.ffn_up_exps.weight"
    made = edit_model(
        ALL["qwen3moe"].model_path,
        tmp_path / "m.gguf",
        {name: ((32, 32, 8), TensorType.F64, np.zeros(8 * 32 * 32).view(np.uint8))},
    )
    with pytest.raises(UnsupportedError, match=r"ffn_up_exps\.weight has type F64; supported: F32, F16"):
        MoeWeights.load(
            WeightReader(open_model(made)),
            "blk.0.",
            32,
            num_experts=8,
            num_experts_per_tok=3,
            renormalise=True,
        )
