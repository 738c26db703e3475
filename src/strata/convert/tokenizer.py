"""Tokenizer metadata from `tokenizer.json`, `tokenizer_config.json` and the chat template's file."""

import json
from pathlib import Path
from typing import Any

from strata.convert.checkpoint import read_json
from strata.convert.config import Config
from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import Typed, ValueType

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}


def tokenizer_metadata(directory: Path, config: Config) -> dict[str, Any]:
    """`tokenizer.*` keys; nothing where the directory has no `tokenizer.json`."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return {}
    found = read_json(path)
    settings_path = directory / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.is_file() else {}
    model = found.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
        kind = model.get("type") if isinstance(model, dict) else None
        kind = f"{kind} with byte fallback" if kind == "BPE" else kind
        raise UnsupportedError(f"{path}: a tokenizer of kind {kind}; byte-level BPE is supported")
    tokens, types = _tokens(path, found, config.whole("vocab_size"))
    prefix = "tokenizer.ggml."
    result: dict[str, Any] = {
        prefix + "model": "gpt2",
        prefix + "pre": pre_tokenizer(path, found.get("pre_tokenizer")),
        prefix + "tokens": tokens,
        prefix + "token_type": Typed(types, ValueType.INT32),
        prefix + "merges": Typed([_merge(pair) for pair in model["merges"]], ValueType.STRING),
    }
    result |= {prefix + key: value for key, value in _special_ids(tokens, settings, config).items()}
    template = _chat_template(directory, settings)
    return result if template is None else result | {"tokenizer.chat_template": template}


def _tokens(path: Path, found: dict[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """Texts and types by id; ids without a token are filled up, as the embedding has rows for them."""
    by_id = {int(i): (text, NORMAL) for text, i in found["model"]["vocab"].items()}
    for added in found.get("added_tokens") or []:
        by_id[int(added["id"])] = (added["content"], CONTROL if added.get("special") else USER_DEFINED)
    if by_id and max(by_id) >= vocab_size:
        raise ModelFileError(f"{path}: token id {max(by_id)} is outside the vocabulary of {vocab_size}")
    filled = [by_id.get(i, (f"[PAD{i}]", UNUSED)) for i in range(vocab_size)]
    return [text for text, _ in filled], [kind for _, kind in filled]


def _merge(pair: Any) -> str:
    return pair if isinstance(pair, str) else " ".join(pair)


def pre_tokenizer(path: Path, found: Any) -> str:
    """Name of the cutting rules (`tokenizer.ggml.pre`), told from their regular expressions."""
    text = json.dumps(found, ensure_ascii=False)
    patterns = [
        node["pattern"].get("Regex", "") for node in _nodes(found) if isinstance(node.get("pattern"), dict)
    ]
    if any(r"[\p{L}\p{M}]+" in pattern for pattern in patterns):
        return "qwen35"
    if any(r"\p{N}{1,3}" in pattern for pattern in patterns):
        return "llama-bpe"
    if any(r"|\p{N}|" in pattern for pattern in patterns):
        return "qwen2"
    if not patterns and '"ByteLevel"' in text:
        return "smollm" if '"Digits"' in text else "gpt-2"
    raise UnsupportedError(f"{path}: the pre-tokenizer's patterns belong to no known family: {patterns}")


def _nodes(found: Any) -> list[dict[str, Any]]:
    """A pre-tokenizer and all those inside it."""
    if not isinstance(found, dict):
        return []
    return [found, *(node for inner in found.get("pretokenizers") or [] for node in _nodes(inner))]


def _special_ids(tokens: list[str], settings: dict[str, Any], config: Config) -> dict[str, Any]:
    """Ids by name from the tokenizer's settings, else from the model's."""
    ids = {text: i for i, text in enumerate(tokens)}
    result: dict[str, Any] = {}
    for key, name in _SPECIAL.items():
        text = settings.get(name)
        text = text.get("content") if isinstance(text, dict) else text
        token = ids.get(text) if isinstance(text, str) else config.token(f"{name}_id")
        if token is not None:
            result[f"{key}_token_id"] = token
    if (add_bos := settings.get("add_bos_token")) is not None:
        result["add_bos_token"] = bool(add_bos)
    return result


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    """The template's own file, or the settings' entry; of several named ones the default."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {item["name"]: item["template"] for item in found}.get("default")
    return found if isinstance(found, str) else None
