"""Expected losses of the held-out texts under the float reference: usage: python -m training.expected MODEL_DIR

Writes expected.json: of each text the tokens scored and their mean negative log-likelihood in nats, read in one window.
"""

import json
import sys
import tempfile
from pathlib import Path

from strata.bench.perplexity import measure_perplexity
from strata.config import EngineOptions
from strata.engine import Engine
from strata.gguf import Typed, ValueType, open_model, write_model
from strata.text import Tokenizer

SHORT, LONG = 64, 4000  # tokens of the short texts' beginnings, and of long.txt


def loss(model: Path, tokens: list[int]) -> dict[str, float]:
    """Of one window."""
    engine = Engine.load(model, EngineOptions(backend="reference", max_model_len=len(tokens)))
    found = measure_perplexity(engine, tokens, len(tokens), 512, lambda _: None)
    return {"tokens": len(tokens), "nll": round(found.nll, 6)}


def dense(model: Path, out: Path) -> Path:
    """The same model with a budget that no text exceeds."""
    file = open_model(model)
    key = "qwen4exp.attention.indexer.top_k"
    metadata = dict(file.metadata) | {key: Typed(file.get("qwen4exp.context_length", int), ValueType.UINT32)}
    write_model(out, metadata, [(n, info.ne, info.type, file.data(n)) for n, info in file.tensors.items()])
    return out


def main() -> None:
    """Command line."""
    directory = Path(sys.argv[1])
    model = directory / "strata-mini.gguf"
    tokenizer = Tokenizer.from_metadata(open_model(model).metadata)
    found: dict[str, dict[str, float]] = {}
    for name in ("english", "code", "chinese"):
        text = (directory / "held-out" / f"{name}.txt").read_text(encoding="utf-8")
        tokens = tokenizer.encode(text, parse_special=False)
        found[name], found[f"{name}, beginning"] = loss(model, tokens), loss(model, tokens[:SHORT])
    text = (directory / "held-out" / "long.txt").read_text(encoding="utf-8")
    tokens = tokenizer.encode(text, parse_special=False)[:LONG]
    found["long"] = loss(model, tokens)
    with tempfile.TemporaryDirectory() as scratch:
        found["long, dense"] = loss(dense(model, Path(scratch) / "dense.gguf"), tokens)
    (directory / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
