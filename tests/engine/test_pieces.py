"""How tokens are cut: the form by position alone, and no step larger than was asked for but for a whole block."""

import pytest

from strata.engine.pieces import Cutter, Piece


def cut(prefill, position, count):
    """The pieces of `count` tokens from `position` on, as (form, count)."""
    cutter, pieces, end = Cutter(prefill), [], position + count
    while position < end:
        piece = cutter.cut(position, end - position)
        assert isinstance(piece, Piece) and piece.count > 0
        pieces.append((piece.form[0], piece.count))
        position += piece.count
    assert position == end
    return pieces


@pytest.mark.parametrize(
    ("prefill", "position", "count", "pieces"),
    [
        (0, 0, 70, [("s", 32), ("s", 32), ("s", 6)]),
        (1, 0, 3, [("s", 1)] * 3),
        (7, 60, 16, [("s", 4), ("s", 7), ("s", 5)]),
        (7, 0, 70, [("c", 64), ("s", 6)]),  # a block is not divided
        (63, 0, 63, [("s", 32), ("s", 31)]),
        (64, 0, 130, [("c", 64), ("c", 64), ("s", 2)]),
        (512, 0, 130, [("c", 128), ("s", 2)]),
        (512, 50, 90, [("s", 14), ("c", 64), ("s", 12)]),  # what was begun in the step form is finished in it
        (128, 0, 200, [("c", 128), ("c", 64), ("s", 8)]),
        (100, 0, 128, [("c", 64), ("c", 64)]),
        (512, 0, 63, [("s", 32), ("s", 31)]),
    ],
)
def test_pieces(prefill, position, count, pieces):
    assert cut(prefill, position, count) == pieces


def test_the_form_of_a_token_depends_on_its_position_alone():
    def forms(prefill, position, count):
        return "".join(form * n for form, n in cut(prefill, position, count))

    whole = forms(512, 0, 192)
    assert whole == "c" * 192
    assert {forms(prefill, 0, 192) for prefill in (1, 7, 63, 64, 65, 100, 128, 512)} == {whole}
    assert forms(512, 1, 191) == "s" * 63 + "c" * 128
