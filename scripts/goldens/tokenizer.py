"""A vocabulary of printable ASCII, in GGUF's form and as a Hugging Face tokenizer."""

import json
from pathlib import Path

from scripts.goldens.configs import BASE_EOS, VOCAB

NORMAL, CONTROL, UNUSED = 1, 3, 5
MERGES = ["t h"]
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# How Qwen files cut text before byte-pair merges; 3.5 and later count combining marks as letters.
PATTERN = "|".join([
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"[^\r\n\p{L}\p{N}]?LETTERS+",
    r"\p{N}",
    r" ?[^\sMARKS\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])  # fmt: skip
PRE_TOKENIZERS = {"llama": "smollm", "qwen35": "qwen35", "qwen35moe": "qwen35", "qwen4exp": "qwen35"}


def tokens() -> tuple[list[str], list[int]]:
    """Text and type of each id: byte-level letters, a merge, the control tokens, and unused ids between."""
    found = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "th"]
    types = [NORMAL] * len(found) + [UNUSED] * (BASE_EOS - len(found)) + [CONTROL] * len(CONTROL_TOKENS)
    found += [f"[PAD{i}]" for i in range(len(found), BASE_EOS)] + CONTROL_TOKENS
    rest = range(len(found), VOCAB)
    return found + [f"[PAD{i}]" for i in rest], types + [UNUSED] * len(rest)


def pre_tokenizer(family: str) -> str:
    """The name that GGUF files give the cutting rules."""
    return PRE_TOKENIZERS.get(family, "qwen2")


def save(family: str, directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json."""
    texts, types = tokens()
    vocab = {text: i for i, (text, kind) in enumerate(zip(texts, types, strict=True)) if kind == NORMAL}
    added = [
        {"id": texts.index(text), "content": text, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for text in CONTROL_TOKENS
    ]  # fmt: skip
    model = {"type": "BPE", "vocab": vocab, "merges": [merge.split() for merge in MERGES]}
    found = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _cuts(family)},
        "decoder": {"type": "ByteLevel"},
        "model": model,
    }
    settings = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False}
    (directory / "tokenizer.json").write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _cuts(family: str) -> list[dict[str, object]]:
    by_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": family == "llama",
    }
    if family == "llama":
        return [{"type": "Digits", "individual_digits": True}, by_bytes]
    marks = r"\p{L}\p{M}" if pre_tokenizer(family) == "qwen35" else r"\p{L}"
    letters = f"[{marks}]" if pre_tokenizer(family) == "qwen35" else marks
    pattern = PATTERN.replace("LETTERS", letters).replace("MARKS", marks)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, by_bytes]
