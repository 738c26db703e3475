"""The trained model of models/strata-mini: expected losses on every backend, sparse attention, its routing trace."""

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from models.edit_model import edit_model
from strata.bench.perplexity import measure_perplexity
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.gguf import open_model
from strata.quants import FORMATS
from strata.text import Tokenizer

HOME = Path(__file__).parents[2] / "models/strata-mini"
MODEL = HOME / "strata-mini.gguf"
EXPECTED = json.loads((HOME / "expected.json").read_text())
LANGUAGES = ("english", "code", "chinese")
# Of mean losses in nats. int8 activations moved them by up to 0.003 over a whole text.
ROUNDING = 0.008


@cache
def tokens(name: str) -> tuple[int, ...]:
    text = (HOME / "held-out" / f"{name}.txt").read_text(encoding="utf-8")
    return tuple(Tokenizer.from_metadata(open_model(MODEL).metadata).encode(text, parse_special=False))


def loss(name: str, count: int, model: Path = MODEL, **options: object) -> float:
    engine = Engine.load(model, replace(EngineOptions(max_model_len=count), **options))
    return measure_perplexity(engine, tokens(name)[:count], count, 512, lambda _: None).nll


@pytest.mark.parametrize("name", LANGUAGES)
def test_cpu_reaches_the_expected_loss(name: str) -> None:
    want = EXPECTED[name]
    assert len(tokens(name)) == want["tokens"]
    assert abs(loss(name, want["tokens"], backend="cpu") - want["nll"]) < ROUNDING


@pytest.mark.parametrize("name", LANGUAGES)
def test_reference_reaches_the_expected_loss(name: str) -> None:
    want = EXPECTED[f"{name}, beginning"]
    assert abs(loss(name, want["tokens"], backend="reference") - want["nll"]) < 2e-5


def test_contract_has_the_bits_of_the_cpu() -> None:
    count = EXPECTED["code, beginning"]["tokens"]
    rows = [
        next(Engine.load(MODEL, EngineOptions(backend=b, max_model_len=count)).logits(tokens("code")[:count]))
        for b in ("cpu", "contract")
    ]
    assert rows[0].shape == rows[1].shape
    assert rows[0].tobytes() == rows[1].tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        "blk.5.ffn_gate_inp.weight",
        "blk.2.ffn_down_exps.weight",
        "blk.3.attn_v.weight",
        "blk.4.ssm_out.weight",
    ],
)
def test_a_fault_in_one_tensor_is_seen(tensor: str, tmp_path: Path) -> None:
    """Its rows change places."""
    file = open_model(MODEL)
    info = file.tensors[tensor]
    kind = FORMATS[info.type.name]
    rows = np.roll(file.data(tensor).reshape(-1, kind.row_bytes(info.ne[0])), 1, axis=0)
    faulty = edit_model(MODEL, tmp_path / "faulty.gguf", {tensor: (info.ne, info.type, rows.reshape(-1))})
    want = EXPECTED["code"]
    assert abs(loss("code", want["tokens"], faulty, backend="cpu") - want["nll"]) > 2 * ROUNDING


def test_sparse_attention_drops_tokens_and_costs_little(tmp_path: Path) -> None:
    """4,000 tokens, of which a query sees 512 and the unfinished block: within 3 % of dense perplexity."""
    want, dense = EXPECTED["long"], EXPECTED["long, dense"]
    assert open_model(MODEL).get("qwen4exp.attention.indexer.top_k", int) < want["tokens"] == 4000
    sparse = loss("long", want["tokens"], backend="cpu")
    assert abs(sparse - want["nll"]) < ROUNDING
    everything = edit_model(MODEL, tmp_path / "dense.gguf", metadata={"attention.indexer.top_k": 4096})
    found = loss("long", want["tokens"], everything, backend="cpu")
    assert abs(found - dense["nll"]) < ROUNDING
    assert sparse != found  # something was left out
    assert np.exp(sparse - found) < 1.03
    starved = edit_model(MODEL, tmp_path / "starved.gguf", metadata={"attention.indexer.top_k": 4})
    assert np.exp(loss("long", want["tokens"], starved, backend="cpu") - found) > 1.03


def test_greedy_text_is_the_same_on_cpu_and_contract() -> None:
    prompt = list(tokens("code")[:40])
    texts = []
    for backend in ("cpu", "contract"):
        engine = Engine.load(MODEL, EngineOptions(backend=backend, max_model_len=128))
        texts.append(list(engine.generate(prompt, SamplingParams(temperature=0.0, max_tokens=16))))
    assert len(texts[0]) == 16
    assert texts[0] == texts[1]


def test_routing_trace() -> None:
    """Layers, tokens, ranks; no expert twice for a token; four segments."""
    with np.load(HOME / "routing.npz", allow_pickle=False) as found:
        ids, experts = found["ids"], int(found["num_experts"])
        assert found["names"].tolist() == [*LANGUAGES, "switching"]
        assert found["starts"].tolist() == [0, 1000, 2000, 3000]
    assert ids.dtype == np.uint16
    assert ids.shape == (8, 4000, 4)
    assert ids.max() < experts == 64
    assert (np.diff(np.sort(ids, axis=2), axis=2) > 0).all()


def test_the_file_is_the_one_the_card_describes() -> None:
    digest = hashlib.sha256(MODEL.read_bytes()).hexdigest()
    assert digest in (HOME / "README.md").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) < 24e6
