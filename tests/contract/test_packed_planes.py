"""Packing loses nothing: it is a permutation of a matrix's bits."""

import numpy as np
import pytest
from benchmarks.contract.pack import BLOCK, pack, random_rows


@pytest.mark.parametrize("name", BLOCK)
def test_packing_permutes_bits(name: str) -> None:
    k = 512
    a, b = (random_rows(name, 16, k, seed) for seed in (1, 2))
    packed = pack(name, a)
    assert packed.size == a.size
    assert np.unpackbits(packed).sum() == np.unpackbits(a).sum()
    assert (
        pack(name, a ^ b) == packed ^ pack(name, b)
    ).all()  # linear over bits: each goes to a place of its own


@pytest.mark.parametrize("name", BLOCK)
def test_each_bit_moves_to_a_place_of_its_own(name: str) -> None:
    values, size = BLOCK[name]
    bits = 8 * size
    rows = np.packbits(np.eye(bits, dtype=np.uint8), axis=1)  # row i: one block with bit i set
    seen = {int(np.flatnonzero(np.unpackbits(pack(name, row[None])))[0]) for row in rows}
    assert len(seen) == bits, f"{bits - len(seen)} bits of a block of {values} values collide"
