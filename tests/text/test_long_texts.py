"""Long and hostile texts: what pre-tokenizers backtrack over, round trips throughout.

A pattern that takes the square of a run of spaces takes minutes here.
"""

import pytest
from text_cases import BYTES, metadata

from strata.text import Tokenizer
from strata.text.pretokenizers import _TABLE

COUNT, SPACES = 15_000, 200_000
TEXTS = {
    "spaces before a letter": " " * SPACES + "x",
    "spaces before a digit": " " * SPACES + "1",
    "spaces before a character of no class": " " * SPACES + "\u0e01",
    "spaces at the end": "x" + " " * SPACES,
    "line ends": "\n" * COUNT,
    "spaces and line ends": " \n" * (COUNT // 2) + "x",
    "tabs and line ends": "\t\r\n" * (COUNT // 3) + " ",
    "wide spaces": "\u3000\u00a0 " * (COUNT // 3) + "x",
    "one letter": "a" * COUNT,
    "digits": "7" * COUNT,
    "quotes": "'" * COUNT,
    "contractions": "'l" * (COUNT // 2),
    "punctuation": "!" * COUNT,
    "marks": "q" + "\u0308" * COUNT,
    "emoji": "\U0001f44d" * COUNT,
    "beginnings of a control token": "<|im_end" * (COUNT // 8),
}


def wrong_round_trips(tokenizer):
    """Names of texts; a comparison that fails does not show them."""
    found = {
        what: tokenizer.decode(tokenizer.encode(text, add_special=False)) for what, text in TEXTS.items()
    }
    return [what for what, text in TEXTS.items() if found[what] != text]


@pytest.mark.parametrize("name", {pre.patterns: name for name, pre in _TABLE.items()}.values())
def test_byte_level(name):
    tokens = [*BYTES, "aa", "aaaa", "ĠĠ", "ĠĠĠĠ", "<|im_end|>"]
    keys = {"tokens": tokens, "merges": ["a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ"], "token_type": [1] * 260 + [3]}
    tokenizer = Tokenizer.from_metadata(metadata(pre=name, bos_token_id=0, eos_token_id=0, **keys))
    assert wrong_round_trips(tokenizer) == []


def test_sentencepiece():
    runs = ["\u2581" * n for n in range(1, 17)]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "aa", "aaaa", *runs, "<|im_end|>"]
    types = [2] + [6] * 256 + [1] * 19 + [3]
    keys = {
        "model": "llama",
        "pre": None,
        "tokens": tokens,
        "token_type": types,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    tokenizer = Tokenizer.from_metadata(
        metadata(scores=list(range(len(tokens))), add_space_prefix=False, **keys)
    )
    assert wrong_round_trips(tokenizer) == []


def test_planted_loss_shows():
    tokens = ["seven" if token == "7" else token for token in BYTES]
    keys = {"merges": [], "token_type": None, "bos_token_id": None, "eos_token_id": None}
    assert wrong_round_trips(Tokenizer.from_metadata(metadata(tokens=BYTES, **keys))) == []
    assert wrong_round_trips(Tokenizer.from_metadata(metadata(tokens=tokens, **keys))) == ["digits"]
