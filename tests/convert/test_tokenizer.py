"""Tokenizer metadata: read back by our tokenizer, it cuts as the checkpoint's own does."""

import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from strata import text
from strata.convert.config import Config
from strata.convert.tokenizer import pre_tokenizer, tokenizer_metadata
from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import TensorType, open_model, write_model
from strata.text.pretokenizers import _TABLE

WORDS = ["th", "the", "Ġthe", "in"]
SPECIAL = ["<|endoftext|>", "<|im_end|>"]


def make(pre: str) -> Tokenizer:
    """A byte-level tokenizer with four merges, two control tokens and one of the user's."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {word: len(vocab) + i for i, word in enumerate(WORDS)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n")]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in _TABLE[pre].patterns]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    made.add_tokens([AddedToken("<think>", special=False)])
    return made


@pytest.fixture
def directory(tmp_path):
    make("qwen35").save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": "{{ settings }}"})
    )
    return tmp_path


def config(directory, vocab_size=270, **more):
    values = {"vocab_size": vocab_size} | more
    return Config(directory / "config.json", values, values)


def test_text_is_cut_alike(directory, tmp_path):
    found = tokenizer_metadata(directory, config(directory))
    path = tmp_path / "words.gguf"
    write_model(path, found, [("x", (1,), TensorType.F32, bytes(4))])
    with open_model(path) as file:
        ours = text.Tokenizer.from_metadata(file.metadata)
        reference = make("qwen35")
        for sample in ("in the thing", "then<|im_end|>the\n 12 é", "<think>in</think>"):
            assert list(ours.encode(sample, parse_special=True)) == reference.encode(sample).ids


def test_special_tokens_types_and_filling(directory):
    found = tokenizer_metadata(directory, config(directory, bos_token_id=260))
    key = "tokenizer.ggml."
    tokens, types = found[key + "tokens"], found[key + "token_type"].value
    assert (len(tokens), len(types)) == (270, 270)
    assert [types[tokens.index(s)] for s in (*SPECIAL, "<think>", "the")] == [3, 3, 4, 1]
    assert (tokens[269], types[269]) == ("[PAD269]", 5)
    assert found[key + "eos_token_id"] == tokens.index("<|im_end|>")
    assert found[key + "padding_token_id"] == tokens.index("<|endoftext|>")
    assert found[key + "bos_token_id"] == 260
    assert found[key + "add_bos_token"] is False
    assert found[key + "merges"].value == ["t h", "th e", "Ġ the", "i n"]


def test_the_templates_own_file_comes_first(directory):
    assert tokenizer_metadata(directory, config(directory))["tokenizer.chat_template"] == "{{ settings }}"
    (directory / "chat_template.jinja").write_text("{{ file }}")
    assert tokenizer_metadata(directory, config(directory))["tokenizer.chat_template"] == "{{ file }}"


def test_no_tokenizer_gives_no_keys(tmp_path):
    assert tokenizer_metadata(tmp_path, config(tmp_path)) == {}


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2", "qwen35"])
def test_cutting_rules_are_told_apart(name, tmp_path):
    assert pre_tokenizer(tmp_path, json.loads(make(name).to_str())["pre_tokenizer"]) == name


def test_cutting_rules_without_patterns(tmp_path):
    byte_level = {"type": "ByteLevel", "use_regex": True}
    digits = {"type": "Digits", "individual_digits": True}
    assert pre_tokenizer(tmp_path, byte_level) == "gpt-2"
    assert pre_tokenizer(tmp_path, {"type": "Sequence", "pretokenizers": [digits, byte_level]}) == "smollm"


def test_what_cannot_be_converted_is_named(directory):
    with pytest.raises(ModelFileError, match=r"token id \d+ is outside the vocabulary of 100"):
        tokenizer_metadata(directory, config(directory, 100))
    unknown = {"type": "Split", "pattern": {"Regex": "x+"}}
    with pytest.raises(UnsupportedError, match=r"no known family.*x\+"):
        pre_tokenizer(directory, unknown)
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram"}}))
    with pytest.raises(UnsupportedError, match="Unigram"):
        tokenizer_metadata(directory, config(directory))
