"""Embeddings: the features of every token of a prompt once, however it was cut and whoever else was served."""

import base64
import threading

import numpy as np
import openai
import pytest
from requests_over import EMBEDDINGS, TEXT, post

from strata.config import EngineOptions
from strata.engine import Engine, Pooling, SamplingParams, pooling_mode
from strata.gguf import Typed, ValueType, open_model

TEXTS = [
    "The cat sat on the mat.",
    "A kitten was sitting on a rug.",
    "Shares fell sharply.",
    "Stock prices dropped.",
]


def vectors(path, prompts, mode="mean", **options):
    engine = Engine.load(path, EngineOptions(max_model_len=512, threads=1, **options))
    poolings = [Pooling(mode) for _ in prompts]
    for prompt, pooling in zip(prompts, poolings, strict=True):
        engine.add(prompt, SamplingParams(max_tokens=1), pooling=pooling)
    while engine.has_work:
        engine.step()
    return np.array([pooling.vector() for pooling in poolings])


@pytest.fixture(scope="module")
def prompts():
    g = np.random.default_rng(5)
    shared = g.integers(0, 300, 200).tolist()
    return [g.integers(0, 300, n).tolist() for n in (1, 33, 64, 200)] + [shared, [*shared, 7], shared[:130]]


def test_the_cut_does_not_change_a_bit(tiny_path, prompts):
    alone = np.concatenate([vectors(tiny_path, [prompt]) for prompt in prompts])
    together = vectors(tiny_path, prompts, max_num_seqs=4, prefill=64)
    assert np.array_equal(alone, together)
    assert np.allclose(np.linalg.norm(alone, axis=1), 1)


def test_the_features_are_those_that_the_head_reads(tiny_path, prompts):
    """Float reference, every token in the step form, against the chunk form on the CPU."""
    want = vectors(tiny_path, prompts[1:3], backend="reference", prefill=0)
    got = vectors(tiny_path, prompts[1:3], backend="cpu")
    assert ((want * got).sum(axis=1) > 0.995).all()
    last = vectors(tiny_path, prompts[1:3], mode="last", backend="cpu")
    assert ((want * last).sum(axis=1) < 0.9).all(), "another pooling is another vector"


def test_a_row_that_is_left_out_shows(tiny_path, prompts, monkeypatch):
    want, add = vectors(tiny_path, [prompts[3]]), Pooling.add
    monkeypatch.setattr(Pooling, "add", lambda self, at, rows: add(self, at, rows[:-1] if at == 64 else rows))
    assert not np.array_equal(want, vectors(tiny_path, [prompts[3]]))


def test_the_file_says_how_to_pool(tmp_path, write_tiny):
    for kind, mode in ((1, "mean"), (3, "last"), (0, "mean")):
        path = write_tiny(tmp_path / f"{kind}.gguf", **{"llama.pooling_type": Typed(kind, ValueType.UINT32)})
        assert pooling_mode(open_model(path)) == mode


def test_the_official_client_gets_near_texts_near(smollm2_server):
    url = f"http://127.0.0.1:{smollm2_server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        answer = client.embeddings.create(model="x", input=TEXTS)
        cut = client.embeddings.create(model="x", input=TEXTS[0], dimensions=32)
    found = np.array([entry.embedding for entry in answer.data])
    near = found @ found.T
    assert near[0, 1] > max(near[0, 2:]) and near[2, 3] > max(near[2, :2])
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 20
    short = found[0, :32] / np.linalg.norm(found[0, :32])
    assert np.allclose(cut.data[0].embedding, short, atol=1e-6)


def test_while_an_answer_runs_and_in_both_encodings(tiny_server):
    thread = threading.Thread(
        target=post, args=(tiny_server, TEXT, {"prompt": [1, 2], "max_tokens": 300, "ignore_eos": True})
    )
    thread.start()
    body = {"input": [[1, 2, 3], list(range(200))]}
    plain = post(tiny_server, EMBEDDINGS, body)[1]["data"]
    coded = post(tiny_server, EMBEDDINGS, {**body, "encoding_format": "base64"})[1]["data"]
    thread.join()
    for a, b in zip(plain, coded, strict=True):
        assert np.array_equal(
            np.float32(a["embedding"]), np.frombuffer(base64.b64decode(b["embedding"]), "<f4")
        )
