"""Text to tokens: usage: python -m training.prepare [--dir DIRECTORY]

Writes `tokenizer.json`, `train-<domain>.npy` (uint16, documents ended by the end of text), `held-out-<domain>.npy` and
`held-out.json`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from training.fetch import DEFAULT_DIR
from training.text import DOMAINS, Document, documents
from training.tokenizer import END_OF_TEXT, train

BATCH = 512


def tokens_of(tokenizer: Tokenizer, found: list[Document]) -> np.ndarray:
    """uint16 tokens of documents, each followed by the end of text."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    pieces = []
    for first in range(0, len(found), BATCH):
        batch = tokenizer.encode_batch(
            [d.text for d in found[first : first + BATCH]], add_special_tokens=False
        )
        pieces += [np.asarray([*encoding.ids, end], np.uint16) for encoding in batch]
    return np.concatenate(pieces)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR)
    directory = parser.parse_args().dir
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else train(directory, path)
    everything = list(documents(directory))
    held_out = {}
    for domain in DOMAINS:
        found = [d for d in everything if d.domain == domain]
        kept = tokens_of(tokenizer, [d for d in found if not d.held_out])
        np.save(directory / f"train-{domain}.npy", kept)
        held_out[domain] = [{"name": d.name, "text": d.text} for d in found if d.held_out]
        rest = tokens_of(tokenizer, [d for d in found if d.held_out])
        np.save(directory / f"held-out-{domain}.npy", rest)
        size = sum(len(d.text.encode()) for d in found)
        print(f"{domain}: {len(found)} documents, {size / 1e6:.1f} MB, {len(kept)} + {len(rest)} tokens")
    (directory / "held-out.json").write_text(json.dumps(held_out, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
