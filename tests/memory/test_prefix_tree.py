"""The prefix tree alone: what a prompt can begin with, and in which order things go."""

import numpy as np
import pytest

from strata.memory import Checkpoint, PageTable, PrefixTree, page_key

STATE = Checkpoint(0, (), "")


def text(seed, count):
    return np.random.default_rng(seed).integers(0, 1000, count).tolist()


def enter(tree, tokens, states=(), decoded=True, end_state=True, images=()):
    """A text as a request leaves it: whole pages, states at some positions, an end with its state."""
    node = tree.root
    tree.touch(tree.walk(tokens, images))
    for begin in range(0, len(tokens) // 64 * 64, 64):
        node = tree.extend(node, page_key(tokens[begin : begin + 64], images, begin))
        node.page = begin // 64
        if node.position in states:
            node.state = STATE
    if len(tokens) % 64:
        end = tree.put_end(node, tuple(tokens[node.position :]), decoded)
        end.state = STATE if end_state else None
        return end
    return node


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_longest_beginning(recurrent):
    tree, known = PrefixTree(recurrent), text(1, 200)
    enter(tree, known, states=(64,))
    pages = 64 if recurrent else 128
    assert tree.match(known + text(2, 50)).position == 200, "a follow-up goes on from the end"
    assert tree.match(known[:150] + text(2, 50)).position == pages
    assert tree.match(text(3, 100)).position == 0
    assert tree.match(known).position == (64 if recurrent else 192), "one token is left to compute"
    assert tree.match(known[:192]).position == pages
    assert tree.match(known[:63]).position == 0


def test_agreement_is_told_to_the_token():
    tree, known = PrefixTree(True), text(1, 200)
    enter(tree, known)
    for agreed in (0, 1, 63, 64, 130, 195):
        other = [*known[:agreed], known[agreed] + 1, *text(4, 90)]
        assert tree.match(other).agreed == agreed


def test_a_block_that_was_read_as_a_prompt_is_read_as_a_whole_by_a_longer_one():
    tree, known = PrefixTree(False), text(1, 100)
    enter(tree, known, decoded=False)
    assert tree.match(known + text(2, 20)).position == 100, (
        "the rest of the block takes the step form in any case"
    )
    assert tree.match(known + text(2, 28)).position == 64
    enter(tree, known[:-1], decoded=True)
    assert tree.match(known[:-1] + text(2, 90)).position == 99


def test_an_end_without_its_state_is_none_to_a_recurrent_model():
    for recurrent, position in ((True, 64), (False, 90)):
        tree, known = PrefixTree(recurrent), text(1, 90)
        enter(tree, known, states=(64,), end_state=False)
        assert tree.match(known + text(2, 5)).position == position


def test_images_tell_texts_apart():
    tree, known = PrefixTree(False), text(1, 128)
    enter(tree, known, images=[(70, b"cat")])
    assert tree.match([*known, 1], [(70, b"cat")]).position == 128
    assert tree.match([*known, 1], [(70, b"dog")]).position == 64
    assert tree.match([*known, 1]).position == 64


def test_the_oldest_goes_first_and_what_several_texts_share_last():
    tree, shared = PrefixTree(False), text(1, 128)
    enter(tree, shared + text(2, 70))
    enter(tree, shared + text(3, 70))
    enter(tree, text(4, 130))
    order = [(node.depth, kept is node) for node, kept in tree.oldest(list(tree.kept()))]
    assert order[-2:] == [(2, True), (1, True)], "the shared pages"
    assert order[:2] == [(3, False), (3, True)], "of the first text the end, then its own page"
    first_use = [kept.used for _, kept in tree.oldest(list(tree.kept()))][:-2]
    assert first_use == sorted(first_use)


def test_what_lies_below_goes_with_a_node():
    tree, known = PrefixTree(False), text(1, 200)
    enter(tree, known)
    first = tree.walk(known)[0]
    gone = tree.remove(first, first)
    assert len(gone) == 4 and all(kept.gone for _, kept in gone)
    assert list(tree.kept()) == []


def test_pages_are_free_when_nobody_holds_them():
    pages = PageTable(4)
    pages.grow(0, 128)
    first, second = pages.pages(0)
    pages.hold(first)
    pages.share(1, [first, second])
    assert (pages.num_free, pages.num_in_use, pages.ref_count(first)) == (2, 2, 3)
    pages.free(0)
    pages.free(1)
    assert (pages.num_free, pages.num_in_use) == (3, 0)
    pages.release(first)
    assert pages.num_free == 4
    with pytest.raises(AssertionError):
        pages.hold(first)
