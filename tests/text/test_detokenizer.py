"""Streaming: pieces add up to the whole decode, and no piece holds half a character."""

from hypothesis import given
from hypothesis import strategies as st
from text_cases import END, TOKENS, metadata

from strata.text import Detokenizer, Tokenizer

TOKENIZER = Tokenizer.from_metadata(metadata())
ANY_ID = st.one_of(st.integers(0, len(TOKENS) - 1), st.integers(0x80, 0xFF))


def pieces(ids, **options):
    detokenizer = Detokenizer(TOKENIZER, **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


@given(st.lists(ANY_ID, max_size=40))
def test_pieces_add_up_to_the_whole_decode(ids):
    assert "".join(pieces(ids)) == TOKENIZER.decode(ids)
    assert "".join(pieces(ids, skip_special=True)) == TOKENIZER.decode(ids, skip_special=True)


@given(st.text())
def test_valid_text_never_shows_a_replacement(text):
    ids = TOKENIZER.encode(text, parse_special=False)
    shown = pieces(ids)
    assert "".join(shown) == text
    assert sum(p.count("\ufffd") for p in shown) == text.count("\ufffd")


def test_planted_half_characters_would_show():
    """Decoding token by token, as a careless stream would, breaks what the detokenizer keeps."""
    ids = TOKENIZER.encode("né👍")
    assert "".join(TOKENIZER.decode([i]) for i in ids) != "né👍"
    assert pieces(ids) == ["n", "", "é", "", "", "", "👍", ""]


def test_unfinished_and_invalid_sequences():
    assert pieces([0xF0, 0x9F]) == ["", "", "\ufffd"]
    assert pieces([0xF0, 97]) == ["", "\ufffda", ""]
    assert pieces([97, END], skip_special=True) == ["a", "", ""]
    again = Detokenizer(TOKENIZER)
    again.push(0xE2)
    assert again.finish() == "\ufffd" and again.finish() == "" and again.push(97) == "a"
