"""Tokens recognised as written: the leftmost, then longest, as a plain alternation finds them."""

import re

from hypothesis import given
from hypothesis import strategies as st

from strata.text.verbatim import Verbatim

WORDS = st.text("ab<|^-]\\", min_size=1, max_size=4)


def reference(words, text):
    pattern = "(" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + ")"
    parts = re.split(pattern, text) if words else [text]
    return [words.get(part, part) if i % 2 else part for i, part in enumerate(parts) if part]


@given(st.lists(WORDS, unique=True), st.text("ab<|^-]\\x"))
def test_equals_an_alternation(words, text):
    ids = {word: i for i, word in enumerate(words)}
    assert list(Verbatim(ids).split(text)) == reference(ids, text)


def test_planted_shortest_first_would_show():
    ids = {"<a": 0, "<a>": 1, "<": 2}
    assert list(Verbatim(ids).split("x<a>y<b")) == ["x", 1, "y", 2, "b"]
    assert re.split("(<|<a|<a>)", "x<a>y<b")[1] == "<"
