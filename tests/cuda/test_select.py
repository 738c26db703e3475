"""The selection of blocks by the last thread block of many: exact for any scores, ties to lower blocks."""

import numpy as np
import pytest

from strata.backends.cuda.lower import ints, launch, pointer

DIM, HEADS, RATIO, PER_PAGE, BUDGET, BINS, LISTED = 32, 2, 4, 16, 512, 4096, 4096


def scores_of(kind, n):
    g = np.random.default_rng(5)
    match kind:
        case "spread":
            return np.abs(g.standard_normal(n)).astype(np.float32)
        case "ties":
            return (g.integers(0, 40, n) / 8).astype(np.float32)
        case "equal":  # more in one bin than the list holds
            return np.full(n, 1.5, np.float32)
        case "close":  # one bin, all bits below it differ
            return (1.5 + np.arange(n) % 997 * 2.0**-20).astype(np.float32)
    return np.where(g.random(n) < 0.1, g.random(n), 0).astype(np.float32)


def chosen(driver, scores, workers):
    """Blocks that score_and_select chooses where key i gives score i."""
    n, stride = len(scores), -(-len(scores) // 64) * 64
    pages = stride // PER_PAGE
    keys = np.zeros((stride, DIM), np.float32)
    keys[:n, 3] = scores / 2
    query = np.zeros((HEADS, DIM), np.float32)
    query[:, 3] = 1

    def put(data):
        address = driver.allocate(data.nbytes)
        driver.upload(address, data)
        return pointer(address)

    order = np.random.default_rng(1).permutation(pages).astype(np.int32)  # page_table: places of the pages
    pooled = np.zeros((pages, PER_PAGE, DIM), np.float32)
    pooled[order] = keys.reshape(pages, PER_PAGE, DIM)
    out, room = driver.allocate(4 * BUDGET), driver.allocate(4 * stride)
    counters = driver.allocate(4 * (1 + BINS))
    inputs = [put(np.array([v], np.int32)) for v in (1, n * RATIO - 1, 0)]
    args = [*inputs, put(order), put(query), put(pooled), pointer(out), pointer(room), pointer(counters)]
    args += [
        pointer(counters + 4),
        *ints(HEADS, DIM, RATIO, BUDGET, stride, pages, pages),
        pointer(driver.allocate(128)),
    ]
    shared = 4 * HEADS * DIM + 8 * LISTED + stride // 4
    node = launch("select.cu", "score_and_select", (workers, 1), 512, args, shared=shared, ahead=True)
    for _ in range(2):  # what it counts is zero again
        driver.launch(node)
    found = np.empty(BUDGET, np.int32)
    driver.download(out, found)
    return found.tolist()


def best(scores):
    """The contract's: the largest, ties to lower blocks, ascending."""
    return sorted(np.argsort(-scores, kind="stable")[:BUDGET].tolist())


@pytest.mark.parametrize("kind", ["spread", "ties", "equal", "close", "zeros"])
def test_the_best_blocks(driver, kind):
    scores = scores_of(kind, 5003)
    assert chosen(driver, scores, 7) == best(scores)


def test_another_choice_is_seen(driver):
    scores = scores_of("spread", 5003)
    kept = best(scores)
    changed = scores.copy()
    changed[kept[0]] = 0
    assert chosen(driver, changed, 7) != kept
