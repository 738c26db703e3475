"""SentencePiece: merges against a slow obvious reference, byte pieces, the space in front, bad metadata."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import ModelFileError
from strata.text import Detokenizer, Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPECIAL = [("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL)]
BYTES = [(f"<0x{byte:02X}>", 0, BYTE) for byte in range(256)]
# "ab" and "ba", and the runs of spaces, have equal scores; "yz" has characters that are no pieces; "a\u2581b" holds
# a space inside; "<" and "s>" could make the control token "<s>".
PIECES = {"\u2581": -90, "a": -91, "b": -92, "c": -93, "<": -94, "s>": -3, "s": -95, ">": -96, "é": -97}
PIECES |= {"ab": -5, "ba": -5, "abc": -4, "bca": -2, "yz": -6, "aab": -7, "a\u2581b": -8, "\u2581a": -9}
PIECES |= {"\u2581" * n: -1000 for n in range(2, 17)}
VOCABULARY = [
    *SPECIAL,
    *BYTES,
    *((text, score, NORMAL) for text, score in PIECES.items()),
    ("[x]", 0, USER_DEFINED),
]
ID = {text: i for i, (text, _, _) in enumerate(VOCABULARY)}


def metadata(vocabulary=VOCABULARY, **changes):
    texts, scores, types = map(list, zip(*vocabulary, strict=True))
    keys = {"model": "llama", "tokens": texts, "scores": np.array(scores, np.float32)}
    keys |= {
        "token_type": np.array(types, np.int32),
        "add_space_prefix": False,
        "add_bos_token": False,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def reference(text, scores):
    """Pieces by the definition: the best pair of neighbours, the leftmost on a tie, over and over."""
    parts = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def spelled(parts):
    return [
        i
        for part in parts
        for i in ([ID[part]] if part in PIECES else [ID[f"<0x{b:02X}>"] for b in part.encode()])
    ]


TOKENIZER = Tokenizer.from_metadata(metadata())


@given(st.text(st.sampled_from("ab c<s>yzé👍")))
def test_merges_equal_the_definition(text):
    ids = TOKENIZER.encode(text, parse_special=False)
    assert ids == spelled(reference(text, PIECES))
    assert TOKENIZER.decode(ids) == text


def test_equal_scores_merge_leftmost_which_ranks_of_pairs_cannot_say():
    assert TOKENIZER.encode("aba") == [ID["ab"], ID["a"]]
    assert TOKENIZER.encode("bab") == [ID["ba"], ID["b"]]
    ranked = PIECES | {"ba": -5.5}  # planted: one of them first
    assert spelled(reference("bab", ranked)) != TOKENIZER.encode("bab")
    assert TOKENIZER.encode(" " * 35) == [ID["\u2581" * n] for n in (16, 16, 3)]


def test_bytes_and_characters_outside_the_vocabulary():
    assert TOKENIZER.encode("\n") == [ID["<0x0A>"]] and TOKENIZER.encode("yz") == [ID["yz"]]
    assert TOKENIZER.encode("zy") == [ID["<0x7A>"], ID["<0x79>"]]
    assert (
        TOKENIZER.decode([ID["<0xC3>"], ID["<0xA9>"]]) == "é"
        and TOKENIZER.token_bytes(ID["<0xC3>"]) == b"\xc3"
    )
    parts = Detokenizer(TOKENIZER)
    assert [parts.push(ID[t]) for t in ("<0xC3>", "<0xA9>", "\u2581a")] == ["", "é", " a"]
    without_bytes = [entry for entry in VOCABULARY if entry[2] != BYTE]
    few = Tokenizer.from_metadata(metadata(without_bytes))
    assert few.encode("a?b")[1] == 0
    nameless = Tokenizer.from_metadata(
        metadata([("a", 0, NORMAL)], bos_token_id=0, eos_token_id=0, unknown_token_id=0)
    )
    assert nameless.encode("a?") == [0, 0]


def test_text_never_spells_control_or_byte_pieces():
    for text in ("<s>", "<unk>", "<0x0A>", "</s>"):
        plain = TOKENIZER.encode(text, parse_special=False)
        assert ID[text] not in plain and TOKENIZER.decode(plain) == text
    assert TOKENIZER.encode("<s>", parse_special=False) == [ID["<"], ID["s>"]]
    assert TOKENIZER.encode("a<s>[x]") == [ID["a"], ID["<s>"], ID["[x]"]]
    assert TOKENIZER.encode("[x]<0x0A>", parse_special=False)[0] == ID["[x]"]
    assert TOKENIZER.special_ids == {0, 1, 2} and TOKENIZER.eos_ids == {2}


def test_the_space_in_front_and_the_begin_token_are_there_unless_the_file_says_otherwise():
    usual = Tokenizer.from_metadata(metadata(add_space_prefix=None, add_bos_token=None))
    assert usual.encode("a") == [1, ID["\u2581a"]]
    assert usual.encode("a<s>a", add_special=False) == [ID["\u2581a"], 1, ID["\u2581a"]]
    assert usual.encode("") == [1] and usual.decode(usual.encode("a"), skip_special=True) == " a"
    assert TOKENIZER.encode("a") == [ID["a"]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [0.0]}, "scores has 1 entries, tokens has"),
        ({"scores": ["x"] * len(VOCABULARY)}, "scores must be numbers"),
        ({"scores": [0.0, float("nan")] + [0.0] * (len(VOCABULARY) - 2)}, r"scores\[1\] is not finite"),
        ({"tokens": ["a"] * len(VOCABULARY), "token_type": None}, r"tokens\[0\] and \[1\] are the same text"),
        ({"token_type": [BYTE] * len(VOCABULARY)}, r"tokens\[0\] is of the type byte"),
        ({"unknown_token_id": len(VOCABULARY)}, "outside the vocabulary"),
    ],
)
def test_bad_metadata(changes, says):
    with pytest.raises(ModelFileError, match=says):
        Tokenizer.from_metadata(metadata(**changes))
