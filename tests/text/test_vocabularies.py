"""Real vocabularies: every golden pair of llama.cpp's, round trips, and control tokens that stay text."""

import dataclasses
import json
import unicodedata
import zlib
from pathlib import Path

import pytest

from strata.errors import UnsupportedError
from strata.gguf import open_model
from strata.text import Tokenizer, pretokenizers

BYTE_LEVEL = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "mpt",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]
SENTENCEPIECE = ["llama-spm", "phi-3"]
COMPOSING = {"command-r", "mpt", "qwen2", "qwen35"}
CUTS = json.loads((Path(__file__).parent / "golden_cuts.json").read_text())


def read_metadata(directory, name):
    return dict(open_model(directory / f"ggml-vocab-{name}.gguf").metadata)


def read_pairs(directory, name):
    """(text, ids): texts end in a separator each, ids stand one text a line."""
    separator = "\n__ggml_vocab_test__\n"
    path = directory / f"ggml-vocab-{name}.gguf"
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().removesuffix(separator).split(separator)
    lines = path.with_suffix(".gguf.out").read_text().removesuffix("\n").split("\n")
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=True)]


def wrong_pairs(tokenizer, pairs):
    return [text for text, ids in pairs if tokenizer.encode(text, False, False) != ids]


def wrong_cuts(tokenizer, name):
    """Texts of golden_cuts.json whose ids are not those of llama.cpp."""
    found = (tokenizer.encode(text, False, False) for text in CUTS["texts"])
    sums = [zlib.crc32(" ".join(map(str, ids)).encode()) for ids in found]
    return [
        text for text, s, golden in zip(CUTS["texts"], sums, CUTS["crc32"][name], strict=True) if s != golden
    ]


@pytest.fixture
def uncomposed(monkeypatch):
    """Pre-tokenizers as llama.cpp has them, which leaves composing (NFC) to its caller."""
    for name in COMPOSING:
        plain = dataclasses.replace(pretokenizers.find_pretokenizer(name), nfc=False)
        monkeypatch.setitem(pretokenizers._TABLE, name, plain)


@pytest.mark.usefixtures("uncomposed")
@pytest.mark.parametrize("name", [*BYTE_LEVEL, *SENTENCEPIECE])
def test_golden_pairs(vocabularies, name):
    pairs = read_pairs(vocabularies, name)
    assert len(pairs) == (50 if name == "qwen35" else 46)
    tokenizer = Tokenizer.from_metadata(read_metadata(vocabularies, name))
    assert wrong_pairs(tokenizer, pairs) == [] and wrong_cuts(tokenizer, name) == []


@pytest.mark.parametrize("name", sorted(COMPOSING))
def test_composed_text(vocabularies, name):
    """As the models' own tokenizers do; llama.cpp's pairs hold decomposed text for qwen35 alone."""
    tokenizer = Tokenizer.from_metadata(read_metadata(vocabularies, name))
    pairs = read_pairs(vocabularies, name)
    decomposed = [text for text, _ in pairs if unicodedata.normalize("NFC", text) != text]
    assert wrong_pairs(tokenizer, pairs) == decomposed
    assert len(decomposed) == (3 if name == "qwen35" else 0)
    for text in [*decomposed, "e\u0301 n\u0303"]:
        assert tokenizer.encode(text) == tokenizer.encode(unicodedata.normalize("NFC", text))


NEAREST = {
    "command-r": "gpt-2",
    "deepseek-coder": "deepseek-llm",
    "deepseek-llm": "deepseek-coder",
    "falcon": "gpt-2",
    "gpt-2": "starcoder",
    "llama-bpe": "qwen2",
    "mpt": "falcon",
    "qwen2": "qwen35",
    "qwen35": "qwen2",
    "refact": "gpt-2",
    "starcoder": "gpt-2",
}


@pytest.mark.usefixtures("uncomposed")
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_planted_cuts_show(vocabularies, name):
    """The cuts of the family most alike give other ids somewhere."""
    keys = read_metadata(vocabularies, name) | {"tokenizer.ggml.pre": NEAREST[name]}
    assert wrong_cuts(Tokenizer.from_metadata(keys), name)


def test_planted_scores_and_spaces_show(vocabularies):
    keys = read_metadata(vocabularies, "llama-spm")
    for changes in ({"scores": -keys["tokenizer.ggml.scores"]}, {"add_space_prefix": False}):
        changed = keys | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
        assert wrong_pairs(Tokenizer.from_metadata(changed), read_pairs(vocabularies, "llama-spm"))


@pytest.mark.parametrize("name", ["bert-bge", "gemma-4", "nomic-bert-moe"])
def test_other_kinds_are_refused(vocabularies, name):
    with pytest.raises(UnsupportedError, match="supported: gpt2, llama"):
        Tokenizer.from_metadata(read_metadata(vocabularies, name))


@pytest.mark.parametrize("name", [*BYTE_LEVEL, *SENTENCEPIECE])
def test_control_tokens_and_round_trips(vocabularies, name):
    tokenizer = Tokenizer.from_metadata(read_metadata(vocabularies, name))
    assert tokenizer.special_ids and tokenizer.eos_ids <= tokenizer.special_ids
    prefix = " " if name in SENTENCEPIECE else ""
    for token_id in sorted(tokenizer.special_ids)[:64]:
        text = tokenizer.decode([token_id])
        assert tokenizer.encode(text, add_special=False) == [token_id]
        for said in (text, f"{text}{text}", f"x{text} y", f"<{text}>"):
            plain = tokenizer.encode(said, parse_special=False, add_special=False)
            assert not tokenizer.special_ids & set(plain)
            assert tokenizer.decode(plain) == prefix + said
    for text, _ in read_pairs(vocabularies, name):
        composed = unicodedata.normalize("NFC", text) if name in COMPOSING else text
        decoded = tokenizer.decode(tokenizer.encode(text, False, False))
        assert decoded == (prefix + composed if text else "")


def test_the_ends_of_turns_are_control_tokens_whatever_their_type(vocabularies):
    tokenizer = Tokenizer.from_metadata(read_metadata(vocabularies, "phi-3"))
    end = tokenizer.encode("</s>", add_special=False)
    assert len(end) == 1 and set(end) <= tokenizer.eos_ids  # user-defined in the file
    assert not tokenizer.eos_ids & set(tokenizer.encode("</s>", parse_special=False))
