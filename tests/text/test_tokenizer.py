"""Tokenizer: ids llama.cpp gives, round trips, control tokens, and metadata that makes no sense."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_cases import BEGIN, BYTES, END, IM_END, IM_END_X, MERGES, TOKENS, TOOL, metadata

from strata.errors import ModelFileError, UnsupportedError, UsageError
from strata.gguf import open_model
from strata.text import Tokenizer
from strata.text.pretokenizers import PreTokenizer, find_pretokenizer

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text())["rows"]
SMALL = Tokenizer.from_metadata(metadata())


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return open_model(smollm2_path).metadata


def wrong_rows(tokenizer, column, **options):
    """Golden texts whose ids differ."""
    return [row["text"] for row in GOLDEN if tokenizer.encode(row["text"], **options) != row[column]]


def test_smollm_equals_llama_cpp(smollm2):
    tokenizer = Tokenizer.from_metadata(smollm2)
    assert wrong_rows(tokenizer, "smollm") == []
    assert wrong_rows(tokenizer, "smollm_plain", parse_special=False) == []
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, {0, 2})
    assert tokenizer.decode(tokenizer.encode("The capital of France")) == "The capital of France"


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "qwen35", "llama-bpe"])
def test_other_pretokenizers_equal_llama_cpp(smollm2, pre):
    keys = {k: v for k, v in smollm2.items() if k != "tokenizer.ggml.add_bos_token"}
    assert wrong_rows(Tokenizer.from_metadata(keys | {"tokenizer.ggml.pre": pre}), pre) == []
    alike = {"qwen2", "qwen35"} if pre.startswith("qwen") else {pre}
    for other in {"gpt-2", "qwen2", "qwen35", "llama-bpe"} - alike:  # planted: another one's cuts
        assert wrong_rows(Tokenizer.from_metadata(keys | {"tokenizer.ggml.pre": other}), pre)


def test_combining_marks_are_letters_for_qwen35_only():
    golden = json.loads((HERE / "golden_marks.json").read_text())
    tokens = [*BYTES, *(m.replace(" ", "") for m in golden["merges"])]
    keys = {"tokens": tokens, "merges": golden["merges"], "token_type": None}
    keys |= {"bos_token_id": None, "eos_token_id": None}
    ids = {}
    for pre in ("qwen2", "qwen35"):
        tokenizer = Tokenizer.from_metadata(metadata(pre=pre, **keys))
        ids[pre] = [tokenizer.encode(text) for text in golden["texts"]]
        assert ids[pre] == golden[pre]
    assert ids["qwen2"] != ids["qwen35"]


def test_merges_bytes_and_control_tokens():
    assert SMALL.encode("hello world") == [TOKENS.index(t) for t in ("hello", "Ġwor", "ld")]
    assert SMALL.encode("\n é") == [10, 32, 0xC3, 0xA9]
    assert SMALL.encode("a<|im_end|>b") == [97, IM_END, 98]
    assert SMALL.encode("<|im_end|>x") == [IM_END_X]  # the longest
    plain = SMALL.encode("<|im_end|>[tool]", parse_special=False)
    assert plain == [*b"<|im_end|>", TOOL]
    assert SMALL.decode(plain) == "<|im_end|>[tool]"


def test_decode_skips_control_tokens_only():
    ids = [BEGIN, *SMALL.encode("hello [tool]"), END]
    assert SMALL.decode(ids, skip_special=True) == "hello [tool]"
    assert SMALL.decode(ids) == "<|begin|>hello [tool]<|end_of_text|>"
    assert SMALL.decode([0xC3, 97]) == "\ufffda"
    assert SMALL.token_bytes(0xC3) == b"\xc3" and SMALL.token_bytes(TOOL) == b"[tool]"
    for token_id in (-1, len(TOKENS)):
        with pytest.raises(UsageError, match=str(len(TOKENS))):
            SMALL.token_bytes(token_id)


@given(st.text())
def test_round_trip(text):
    for parse_special in (True, False):
        assert SMALL.decode(SMALL.encode(text, parse_special)) == text


def test_begin_and_end_tokens():
    asked = Tokenizer.from_metadata(metadata(add_bos_token=np.bool_(True), add_eos_token=True))
    assert asked.encode("") == [BEGIN, END] and asked.encode("", add_special=False) == []
    assert Tokenizer.from_metadata(metadata(pre="llama-bpe")).encode("") == [BEGIN]
    assert SMALL.encode("") == [] and SMALL.add_bos is False
    assert SMALL.eos_ids == {END, IM_END}
    assert Tokenizer.from_metadata(metadata(eot_token_id=np.uint32(7))).eos_ids == {END, IM_END, 7}


def test_space_prefix_and_nfc():
    prefixed = Tokenizer.from_metadata(metadata(add_space_prefix=True))
    assert prefixed.encode("world") == SMALL.encode(" world")
    composed = Tokenizer.from_metadata(metadata(pre="qwen2"))
    assert composed.encode("e\u0301") == [0xC3, 0xA9] and SMALL.encode("e\u0301") == [0x65, 0xCC, 0x81]


def test_whole_tokens_need_no_merges_where_the_family_says_so():
    keys = {"tokens": [*TOKENS[:-1], "abc"], "add_bos_token": False}
    assert Tokenizer.from_metadata(metadata(pre="llama-bpe", **keys)).encode("abc") == [len(TOKENS) - 1]
    assert Tokenizer.from_metadata(metadata(**keys)).encode("abc") == [97, 98, 99]


def test_bytes_without_a_token_are_dropped_and_merges_without_one_never_apply():
    tokens = list(TOKENS)
    tokens[4] = "instead"
    few = Tokenizer.from_metadata(metadata(tokens=tokens, merges=[*MERGES, "no such", "a b"]))
    assert few.encode("a\x04b") == [97, 98] and few.encode("hello") == [TOKENS.index("hello")]


def test_lone_surrogates_are_refused():
    with pytest.raises(UsageError, match="character 1"):
        SMALL.encode("a\ud800b")


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model": None}, ModelFileError, "model is missing"),
        ({"model": 3}, ModelFileError, "model must be str"),
        ({"model": "bert"}, UnsupportedError, "supported: gpt2, llama"),
        ({"pre": None}, ModelFileError, "pre is missing"),
        ({"pre": "other"}, UnsupportedError, "falcon, gpt-2, llama-bpe, mpt, qwen2"),
        ({"tokens": None}, ModelFileError, "tokens is missing"),
        ({"tokens": []}, ModelFileError, "tokens is empty"),
        ({"tokens": "abc"}, ModelFileError, "tokens must be an array"),
        ({"tokens": [*BYTES, 7]}, ModelFileError, r"tokens\[256\] must be a string"),
        ({"tokens": [*TOKENS[:-1], "hello"]}, ModelFileError, r"tokens\[259\] and \[269\]"),
        ({"token_type": [1, 1]}, ModelFileError, "2 entries, tokens has 270"),
        ({"merges": None}, ModelFileError, "merges is missing"),
        ({"merges": [*MERGES, "a", "a b c"]}, ModelFileError, r"merges\[8\]"),
        ({"eos_token_id": 270}, ModelFileError, "270 is outside the vocabulary of 270"),
        ({"eos_token_id": -1}, ModelFileError, "outside"),
        ({"eos_token_id": True}, ModelFileError, "must be int"),
        ({"bos_token_id": None, "add_bos_token": True}, ModelFileError, "add_bos_token"),
        ({"add_eos_token": 1}, ModelFileError, "must be bool"),
    ],
)
def test_bad_metadata(changes, error, says):
    with pytest.raises(error, match=says):
        Tokenizer.from_metadata(metadata(**changes))


def test_numpy_arrays_and_missing_types():
    typed = Tokenizer.from_metadata(metadata(token_type=np.array([1] * 264 + [3] * 4 + [4, 5], np.int32)))
    assert typed.special_ids == SMALL.special_ids
    untyped = Tokenizer.from_metadata(metadata(token_type=None))
    assert untyped.special_ids == frozenset() and untyped.eos_ids == {END}


def test_pretokenizer_table():
    assert isinstance(find_pretokenizer("qwen35"), PreTokenizer) and find_pretokenizer("qwen35").nfc
