"""Read bandwidth: the loop reads every word, once."""

import numpy as np
import pytest

from strata import _native, hw


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_sum_reads_every_word_once(count):
    words = np.random.default_rng(1).integers(0, 2**63, count + 1, dtype=np.uint64)
    expected = int(words[:count].sum(dtype=np.uint64))
    assert _native.sum_words(words.ctypes.data, count) == expected
    words[count // 2] += np.uint64(1)
    assert _native.sum_words(words.ctypes.data, count) == expected + (count > 0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_measures_something(threads):
    assert hw.measure_read_bandwidth(threads, seconds=0.0, size=1 << 20) > 0
