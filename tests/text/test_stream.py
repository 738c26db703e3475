"""A request's text: what is held back for a stop string or half a character comes out where tokens end."""

import pytest

from strata.text import TextStream

TEXTS = {1: b"one ST", 2: b"OP two", 3: b"AY", 4: b"\xe2\x82", 5: b"\xac", 9: b"<end>"}


class Bytes:
    """As much of a tokenizer as a stream uses."""

    special_ids = frozenset({9})

    def token_bytes(self, token_id):
        return TEXTS[token_id]


def stream(tokens, stops=("STOP",)):
    """(text, whether a stop ended it, tokens counted), each push and the finish in order."""
    found = TextStream(Bytes(), stops, stop_token_ids={9})
    pieces = [found.push(token) for token in tokens]
    return [*pieces, found.finish()], found.stopped, found.num_tokens


@pytest.mark.parametrize(
    ("tokens", "pieces", "stopped", "count"),
    [
        ([1], ["one ", "ST"], False, 1),  # held back, and no stop after all
        ([1, 3], ["one ", "STAY", ""], False, 2),
        ([1, 9], ["one ", "ST", ""], True, 2),  # a stop token gives no text, and lets go of what was held
        ([1, 2, 3], ["one ", "", "", ""], True, 2),
        ([4, 5], ["", "€", ""], False, 2),
        ([4], ["", "\ufffd"], False, 1),
        ([4, 9], ["", "\ufffd", ""], True, 2),
        ([9, 1], ["", "", ""], True, 1),
    ],
)
def test_stream(tokens, pieces, stopped, count):
    assert stream(tokens) == (pieces, stopped, count)


def test_a_stop_may_end_in_the_last_half_character():
    assert stream([4], stops=["\ufffd"]) == (["", ""], True, 1)
    assert stream([1, 4], stops=["ST\ufffd"]) == (["one ", "", ""], True, 2)
