"""Draft layers against their golden logits, in the model's file or in one of their own."""

from dataclasses import replace

import numpy as np
import pytest
from golden import ALL

from models.driver import ROWS, Driver, Rows, digest
from oracles import Model, nrmse
from oracles import draft_logits as oracle_draft_logits
from strata import models
from strata.backends import ReferenceBackend
from strata.backends.cpu import CpuBackend
from strata.config import EngineOptions
from strata.engine import Engine
from strata.errors import ModelFileError
from strata.gguf import open_model
from strata.synth import TinyOptions, tiny_geometry, uniform_types, write_tiny

CASES = [n for n, c in ALL.items() if c.draft_logits is not None and c.model_path.exists()]


def driver(name, backend):
    case = ALL[name]
    return Driver(case.model_path, backend, draft=case.draft_path or case.model_path)


def draft_logits(name, backend, rows=ROWS, count=None, shift=1):
    """Teacher-forced: row i from position i's rows of the trunk and token i + shift."""
    d, tokens, out = driver(name, backend), ALL[name].tokens.tolist()[:count], []
    for at in range(0, len(tokens), rows):
        d.step(Rows(0, at, tokens[at : at + rows]))
        n = len(tokens[at : at + rows])
        d.commit({0: n})
        hidden, following = d.at(d.hidden[0])[:n].copy(), tokens[at + shift : at + shift + rows]
        out.append(d.draft(Rows(0, at, following), hidden[: len(following)])[0])
    return np.concatenate(out)


@pytest.mark.parametrize("name", CASES)
def test_float_reference(name):
    assert nrmse(draft_logits(name, ReferenceBackend("float")), ALL[name].draft_logits) <= 1e-5


@pytest.mark.parametrize("name", CASES)
def test_cpu_is_the_contract_and_near_the_golden(name):
    got = draft_logits(name, CpuBackend(2))
    assert nrmse(got, ALL[name].draft_logits) <= (0.06 if name.endswith("quantised") else 1e-4)
    assert digest(got[:23]) == digest(draft_logits(name, ReferenceBackend("contract"), count=24))


@pytest.mark.parametrize("name", ["qwen35", "qwen4exp"])
def test_rows_of_a_step_do_not_matter_and_tokens_do(name):
    want = digest(draft_logits(name, CpuBackend(2), rows=1, count=40))
    assert digest(draft_logits(name, CpuBackend(2), rows=7, count=40)) == want
    wrong = draft_logits(name, CpuBackend(2), count=40, shift=2)
    assert nrmse(wrong, ALL[name].draft_logits[: len(wrong)]) > 1e-2


@pytest.mark.parametrize("name", ["qwen35", "qwen4exp"])
def test_drafts_follow_drafts(name):
    """Two drafts in a row: the second reads what the first gives, and writes a cell that the trunk overwrites."""
    d, tokens = driver(name, CpuBackend(2)), ALL[name].tokens.tolist()
    d.step(Rows(0, 0, tokens[:8]))
    d.commit({0: 8})
    hidden = d.at(d.hidden[0])[:8].copy()
    _, out = d.draft(Rows(0, 0, tokens[1:9]), hidden)
    second, _ = d.draft(Rows(0, 8, tokens[9:10]), out[7:8])
    assert np.isfinite(second).all()
    assert nrmse(second, ALL[name].draft_logits[8:9]) > 1e-3
    d.step(Rows(0, 8, tokens[8:9]))
    third, _ = d.draft(Rows(0, 8, tokens[9:10]), d.at(d.hidden[0])[:1].copy())
    assert nrmse(third, ALL[name].draft_logits[8:9]) <= 1e-4


def test_a_quantised_draft_layer_with_streams(tmp_path):
    """Every expert is chosen, so that no near tie of the router decides how far rounding reaches."""
    geometry = replace(tiny_geometry("qwen4exp"), draft=True, num_experts=4, num_experts_per_tok=4)
    types = uniform_types("Q8_0") | {"gate": "Q4_0", "up": "Q4_0", "down": "Q5_0"}
    path = tmp_path / "m.gguf"
    write_tiny(path, TinyOptions(replace(geometry, index_budget=4096), types))
    tokens = np.random.default_rng(1).integers(0, 250, 60)

    def run(backend):
        options = EngineOptions(backend=backend, threads=2, kv="f32", max_model_len=60)
        return np.concatenate(list(Engine.load(path, options, path).draft_logits(tokens.tolist())))

    want = oracle_draft_logits(Model(path), tokens)
    assert nrmse(run("reference"), want) <= 1e-5
    assert 1e-3 < nrmse(run("cpu"), want) <= 0.06
    assert digest(run("cpu")) == digest(run("contract"))


def test_files_without_a_draft_layer_are_named():
    file = open_model(ALL["qwen3next-quantised"].model_path)
    with pytest.raises(
        ModelFileError, match=r"no draft layer: tensor blk\.\d\.nextn\.eh_proj\.weight is missing"
    ):
        models.load_with_draft(file, file)
    llama = open_model(ALL["llama"].model_path)
    with pytest.raises(ModelFileError, match="no draft layer"):
        models.load_with_draft(llama, llama)


def test_a_draft_layer_of_another_model_is_named():
    draft = open_model(ALL["qwen35-quantised"].draft_path)
    with pytest.raises(ModelFileError, match="a draft layer for qwen35, the model is qwen4exp"):
        models.load_with_draft(open_model(ALL["qwen4exp"].model_path), draft)
    with pytest.raises(ModelFileError, match=r"nextn\.enorm\.weight has shape \[64\], expected \[32\]"):
        models.load_with_draft(open_model(ALL["qwen35"].model_path), draft)
