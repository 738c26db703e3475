"""Mean KL divergence from float32 to the contract's int8 activations, and to llama.cpp's, on one file and text.

usage: divergence.py MODEL.gguf TEXT [--tokens 2000]     (needs: pip install llama-cpp-python)
"""

import argparse
from pathlib import Path

import numpy as np

from strata.config import EngineOptions
from strata.engine import Engine
from strata.text import Tokenizer


def log_softmax(rows):
    """float64 log-probabilities."""
    z = rows.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def divergence(reference, rows):
    """(mean KL(reference || rows) in nats, share of rows with the same arg-max)."""
    p, q = log_softmax(reference), log_softmax(rows)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean()), float((p.argmax(-1) == q.argmax(-1)).mean())


def ours(path, tokens, backend):
    """Logits of one of our backends, f16 keys and values."""
    engine = Engine.load(path, EngineOptions(backend=backend, max_model_len=len(tokens), kv="f16"))
    return np.concatenate(list(engine.logits(tokens)))


def llama_cpp(path, tokens):
    """llama.cpp's logits; f16 keys and values are its default."""
    from llama_cpp import Llama

    model = Llama(str(path), n_ctx=len(tokens) + 8, n_batch=512, n_threads=2, logits_all=True, verbose=False)
    model.eval(tokens)
    return np.array(model.scores[: len(tokens)], np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=2000)
    a = parser.parse_args()
    engine = Engine.load(a.model, EngineOptions(backend="reference", max_model_len=64))
    tokens = Tokenizer.from_metadata(engine.model_file.metadata).encode(a.text.read_text())[: a.tokens]
    reference = ours(a.model, tokens, "reference")
    for name, rows in (
        ("contract (cpu)", ours(a.model, tokens, "cpu")),
        ("llama.cpp", llama_cpp(a.model, tokens)),
    ):
        kl, same = divergence(reference, rows)
        nrmse = np.sqrt(np.mean((rows - reference) ** 2) / np.mean(reference**2))
        print(f"{name:15} {len(tokens)} tokens: mean KL {kl:.2e}, same arg-max {same:.1%}, NRMSE {nrmse:.2%}")


if __name__ == "__main__":
    main()
