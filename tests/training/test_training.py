"""The training implementation against plain formulas. Needs PyTorch, which training/requirements.txt names."""

import argparse
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (training/requirements.txt)")

from training.batches import SHARES  # noqa: E402
from training.config import TINY  # noqa: E402
from training.delta import UnitLowerInverse, delta_rule  # noqa: E402
from training.experts import MixtureOfExperts  # noqa: E402
from training.model import Model  # noqa: E402
from training.packed import read_packed, write_packed  # noqa: E402
from training.plan import PHASES  # noqa: E402
from training.train import Trainer  # noqa: E402

from strata.quants import FORMATS  # noqa: E402
from training import chains, rounding  # noqa: E402


def delta_inputs(seed=0):
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 192, 3, 16, generator=g) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    return q, k, v, torch.rand(2, 192, 3, generator=g), -torch.rand(2, 192, 3, generator=g)


def by_steps(q, k, v, beta, g):
    state, out = torch.zeros(2, 3, 16, 16), []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        change = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * change[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1)


def test_chunks_equal_steps_and_so_do_gradients():
    inputs = [x.requires_grad_() for x in delta_inputs()]
    expected = by_steps(*inputs)
    wanted = torch.autograd.grad(expected.square().sum(), inputs)
    found = delta_rule(*inputs)
    assert torch.allclose(found, expected, atol=2e-5)
    for got, want in zip(torch.autograd.grad(found.square().sum(), inputs), wanted, strict=True):
        assert torch.allclose(got, want, rtol=2e-3, atol=2e-3)
    assert not torch.allclose(delta_rule(*inputs[:4], inputs[4] * 0.9), expected, atol=1e-2)


def test_inverse_holds_where_keys_repeat():
    """All keys alike: powers of the matrix would overflow its digits."""
    a = torch.ones(2, 64, 64).tril(-1)
    inverse = UnitLowerInverse.apply(a)
    assert torch.allclose(inverse @ (a + torch.eye(64)), torch.eye(64).expand(2, 64, 64), atol=1e-5)


def test_grouped_experts_equal_a_loop():
    torch.manual_seed(1)
    layer, x = MixtureOfExperts(TINY), torch.randn(2, 64, TINY.hidden_size)
    chosen, weights, _ = layer.gate(x.flatten(0, 1))
    expected = torch.zeros(128, TINY.hidden_size)
    for row, (ids, shares) in enumerate(zip(chosen, weights, strict=True)):
        for expert, share in zip(ids, shares, strict=True):
            gate, up = (layer.experts.gate_up_proj[expert] @ x.flatten(0, 1)[row]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected[row] += share * (layer.experts.down_proj[expert] @ inner)
    found = layer.experts(x.flatten(0, 1), chosen, weights, None)
    assert torch.allclose(found, expected, atol=1e-4)
    names = [layer.experts.gate_up_proj, layer.experts.down_proj, layer.gate.weight]
    wanted = torch.autograd.grad(expected.square().sum(), names, retain_graph=True)
    for got, want in zip(torch.autograd.grad(found.square().sum(), names), wanted, strict=True):
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-3)


def test_packed_weights_come_back(tmp_path):
    model = Model(TINY)
    write_packed(model, tmp_path)
    found = read_packed(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(found[name], tensor) or torch.equal(found[name], tensor.bfloat16().float()), name


def test_an_interrupted_run_goes_on_exactly(tmp_path):
    rng = np.random.default_rng(0)
    for domain in SHARES:
        for part in ("train", "held-out"):
            np.save(tmp_path / f"{part}-{domain}.npy", rng.integers(0, 250, 3000).astype(np.uint16))
    given = argparse.Namespace(
        device="cpu", dtype="float32", compile=False, data=tmp_path, steps=4, batch_tokens=384
    )
    # From the third phase on the experts' rounding, which is renewed every few steps, is part of the state.
    course = [replace(phase, length=128) for phase in (PHASES[2], PHASES[2], PHASES[3], PHASES[3])]
    straight, first = Trainer(TINY, given), Trainer(TINY, given)
    for phase in course:
        straight.step(phase)
    for phase in course[:2]:
        first.step(phase)
    first.save(tmp_path / "checkpoint.pt")
    second = Trainer(TINY, given)
    second.load(tmp_path / "checkpoint.pt")
    for phase in course[2:]:
        second.step(phase)
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert not torch.equal(first.model.lm_head.weight, second.model.lm_head.weight)


def test_rounded_weights_are_what_the_encoders_write():
    torch.manual_seed(2)
    w = torch.randn(8, 256)
    for rounded, name, bound in (
        (rounding.iq3_xxs(w, rounding.grid()), "IQ3_XXS", 0.2),
        (rounding.q2_0(w), "Q2_0", 0.37),
    ):
        fmt = FORMATS[name]
        again = fmt.decode(fmt.encode(rounded.numpy()))
        assert np.sqrt(((again - rounded.numpy()) ** 2).mean()) < 0.02
        assert 0.1 < float((rounded - w).square().mean().sqrt()) < bound


def test_drafts_of_the_evaluation_are_those_of_training():
    torch.manual_seed(3)
    model, tokens = Model(TINY).eval(), torch.randint(0, 250, (2, 65))
    first, second = chains.drafts(model, tokens, 2)
    with torch.no_grad():
        x, hidden, _ = model.draft(model.run(tokens).residual[:, :-1], tokens[:, 1:])
        assert torch.equal(first, model.lm_head(hidden).argmax(-1))
        # The second draft at cell 1 stands on cell 0 of the first alone.
        shifted = torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0))
        _, hidden, _ = model.draft(shifted, tokens[:, 1:])
    assert second.shape == first.shape
    assert not torch.equal(first, second)


def test_agreement_with_transformers():
    pytest.importorskip("transformers", reason="transformers is not installed (training/requirements.txt)")
    from training.agreement import compare, random_state  # noqa: PLC0415

    state = random_state(TINY)
    tokens = torch.randint(0, 250, (2, 100), generator=torch.Generator().manual_seed(1))
    tokens[0, 30], tokens[1, 77] = 250, 250
    assert compare(TINY, state, tokens)["largest"] < 1e-4
