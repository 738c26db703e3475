"""Golden files against the oracles, and proof that the bound sees the faults that each family invites."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from golden import ALL, CHECKPOINTS, WITH_MODEL, Golden

from oracles import Gap, Model, delta, draft_logits, logits, ngram, nrmse
from oracles.model import grouped, sigmoid, silu, tiled
from strata.gguf import verify

BOUND = 1e-5
CLEAR = 100 * BOUND  # a planted fault must be far outside, not just outside


def rules(**changes: object) -> Callable[[Model], None]:
    """A fault in what the architecture is taken to be."""

    def plant(model: Model) -> None:
        model.rules = replace(model.rules, **changes)

    return plant


def key(name: str, value: object) -> Callable[[Model], None]:
    """A metadata value misread."""
    return lambda model: model.keys.update({name: value})


def tensor(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Model], None]:
    """A tensor misread."""
    return lambda model: model.overrides.update({name: change(model[name])})


def swap(one: str, other: str) -> Callable[[Model], None]:
    """Two tensors taken for each other."""
    return lambda model: model.overrides.update({one: model[other], other: model[one]})


def minus_one(weight: np.ndarray) -> np.ndarray:
    return weight - 1


def swap_halves(weight: np.ndarray) -> np.ndarray:
    return np.roll(weight, weight.shape[-1] // 2, axis=-1)


def swap_rows(experts: np.ndarray) -> np.ndarray:
    return np.roll(experts, experts.shape[1] // 2, axis=1)


def shift(rows: np.ndarray) -> np.ndarray:
    return np.roll(rows, 1, axis=0)


def as_float32(model: Model) -> None:
    model.keys["ple.layer_multipliers"] = np.float32(model.key("ple.layer_multipliers")).astype(np.uint64)


FAULTS = [
    ("llama", "halves for adjacent pairs", rules(rope_halves=True)),
    ("llama", "gate and up swapped", swap("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")),
    ("llama-tied-biases-linear", "bias dropped", tensor("blk.0.attn_k.bias", np.zeros_like)),
    ("llama-tied-biases-linear", "no scaling", key("rope.scaling.type", "none")),
    ("llama-llama3", "divisors ignored", tensor("rope_freqs.weight", np.ones_like)),
    ("llama-yarn", "linear for YaRN", key("rope.scaling.type", "linear")),
    ("llama-yarn", "another trained context", key("rope.scaling.original_context_length", 4096)),
    ("qwen3moe", "adjacent pairs for halves", rules(rope_halves=False)),
    ("qwen3moe", "an expert too few", key("expert_used_count", 2)),
    ("qwen3moe", "q and k norms swapped", swap("blk.1.attn_q_norm.weight", "blk.1.attn_k_norm.weight")),
    ("qwen3moe-quantised", "up for gate", swap("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")),
    ("qwen35", "grouped for tiled heads", rules(key_head=grouped)),
    ("qwen35", "sigmoid for silu gate", rules(output_gate=sigmoid)),
    ("qwen35", "1 of a norm missing", tensor("blk.1.attn_norm.weight", minus_one)),
    ("qwen35-quantised", "grouped for tiled heads", rules(key_head=grouped)),
    ("qwen35moe", "grouped for tiled heads", rules(key_head=grouped)),
    ("qwen35moe", "a exponentiated again", tensor("blk.0.ssm_a", lambda a: -np.exp(a))),
    ("qwen35moe", "shared gate of nought", tensor("blk.1.ffn_gate_inp_shexp.weight", np.zeros_like)),
    ("qwen35moe-quantised", "no YaRN", key("rope.scaling.type", "none")),
    ("qwen3next", "tiled for grouped heads", rules(key_head=tiled)),
    ("qwen3next", "a before b", tensor("blk.0.ssm_ba.weight", lambda w: np.roll(w, 2, axis=0))),
    ("qwen3next", "conv taps reversed", tensor("blk.0.ssm_conv1d.weight", lambda w: w[:, ::-1])),
    ("qwen4exp", "silu for sigmoid gate", rules(output_gate=silu)),
    ("qwen4exp", "grouped for tiled heads", rules(key_head=grouped)),
    ("qwen4exp", "chat token ends n-grams", key("ple.eos_token_id", 126)),
    ("qwen4exp", "multipliers as float32", as_float32),
    ("qwen4exp", "a block too many", key("attention.indexer.top_k", 12)),
    ("qwen4exp", "dense attention", key("attention.compress_ratios", np.zeros(4, np.int32))),
    ("qwen4exp", "1 of an index norm missing", tensor("blk.2.indexer.k_norm.weight", minus_one)),
    ("qwen4exp", "injection of 1", tensor("blk.0.hc_attn_inject.weight", np.zeros_like)),
    ("qwen4exp-two-streams", "up before gate", tensor("blk.0.ffn_gate_up_exps.weight", swap_rows)),
    ("qwen4exp-quantised", "table rows off by one", tensor("per_layer_token_embd.weight", shift)),
    ("qwen4exp-quantised", "experts off by one", tensor("blk.0.ffn_down_exps.weight", shift)),
]  # fmt: skip
DRAFT_FAULTS = [
    ("qwen35", "hidden before embedding", tensor("blk.3.nextn.eh_proj.weight", swap_halves)),
    ("qwen35moe", "input norms swapped", swap("blk.2.nextn.enorm.weight", "blk.2.nextn.hnorm.weight")),
    ("qwen3next", "1 of its final norm missing", tensor("blk.2.nextn.shared_head_norm.weight", minus_one)),
    ("qwen4exp", "sparse for dense", key("attention.compress_ratios", np.array([0, 0, 4, 4], np.int32))),
    ("qwen4exp", "the trunk's head mixer", swap("blk.3.nextn.hc_head_up.weight", "output_hc_up.weight")),
]  # fmt: skip


def named(faults: list[tuple[str, str, object]]) -> list[str]:
    return [f"{case}: {fault}" for case, fault, _ in faults]


@pytest.mark.parametrize("name", WITH_MODEL)
def test_oracle_agrees_with_transformers(name):
    case = ALL[name]
    model, draft = case.models()
    gaps: list[Gap] = []
    assert nrmse(logits(model, case.tokens, gaps), case.logits) < BOUND
    if case.draft_logits is not None:
        assert nrmse(draft_logits(model, case.tokens, draft, gaps), case.draft_logits) < BOUND
    for gap in gaps:
        assert gap.values.min() >= case.record["margin"], f"{gap.kind} of block {gap.layer_idx} is near a tie"
    assert sum(gap.dropped for gap in gaps) == case.record["dropped_blocks"]


@pytest.mark.parametrize(("name", "fault", "plant"), FAULTS, ids=named(FAULTS))
def test_a_fault_in_the_trunk_is_caught(name, fault, plant):
    case = ALL[name]
    model, _ = case.models()
    plant(model)
    assert nrmse(logits(model, case.tokens), case.logits) > CLEAR


@pytest.mark.parametrize(("name", "fault", "plant"), DRAFT_FAULTS, ids=named(DRAFT_FAULTS))
def test_a_fault_in_the_draft_layer_is_caught(name, fault, plant):
    case = ALL[name]
    model, draft = case.models()
    plant(model)
    assert nrmse(draft_logits(model, case.tokens, draft), case.draft_logits) > CLEAR


def forgetful(rule, *parts):
    """`rule` with its state lost at every 64 tokens."""
    cuts = range(64, len(parts[0]), 64)
    chunks = zip(*(np.split(part, cuts) for part in parts), strict=True)
    return np.concatenate([rule(*chunk) for chunk in chunks])


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", "qwen3next", "qwen4exp", "qwen4exp-two-streams"])
def test_a_state_lost_at_a_chunk_border_is_caught(monkeypatch, name):
    case = ALL[name]
    monkeypatch.setattr(delta, "delta_rule", partial(forgetful, delta.delta_rule))
    found = logits(case.models()[0], case.tokens)
    assert nrmse(found[:64], case.logits[:64]) < BOUND
    assert nrmse(found[64:], case.logits[64:]) > CLEAR


def test_a_convolution_without_dilation_is_caught(monkeypatch):
    case = ALL["qwen4exp"]
    monkeypatch.setattr(ngram, "causal_conv", lambda x, weight, dilation: delta.causal_conv(x, weight))
    assert nrmse(logits(case.models()[0], case.tokens), case.logits) > CLEAR


@pytest.mark.parametrize("name", WITH_MODEL)
def test_files_are_sound(name):
    case = ALL[name]
    for path in filter(None, (case.model_path, case.draft_path)):
        assert verify(path)
    assert case.logits.dtype == np.float32
    assert case.logits.shape == (len(case.tokens), 128)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_whole(name):
    directory = ALL[name].directory
    for part in ("config.json", "model.safetensors", "tokenizer.json", "tokens.npy", "logits.npy"):
        assert (directory / part).is_file(), part


def storage(case: Golden) -> set[str]:
    return {info.type.name for info in case.models()[0].file.tensors.values()}


def test_what_the_cases_cover():
    families = {ALL[name].record["family"] for name in WITH_MODEL}
    assert families == {"llama", "qwen3moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp"}
    for family in families:
        kinds = [storage(ALL[name]) for name in WITH_MODEL if ALL[name].record["family"] == family]
        assert {"F32"} in kinds
        assert any(kind - {"F32", "F16", "BF16"} for kind in kinds)
    sparse = ALL["qwen4exp"]
    assert sparse.record["dropped_blocks"] > 0
    assert len(sparse.tokens) > 130
    eos = np.flatnonzero(sparse.tokens == 124)
    assert 0 in eos
    assert 1 in np.diff(eos)
    assert 2 in np.diff(eos)


@pytest.mark.parametrize("length", [64, 128, 130])
def test_a_prompt_s_logits_are_the_first_rows(length):
    case = ALL["qwen4exp"]
    assert nrmse(logits(case.models()[0], case.tokens[:length]), case.logits[:length]) < BOUND
