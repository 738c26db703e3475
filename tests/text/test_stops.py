"""Stop strings: where text ends does not depend on how it was cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.text import StopMatcher


def stream(stops, parts):
    """(text shown, stop matched) after all parts."""
    matcher = StopMatcher(stops)
    shown = [matcher.push(part)[0] for part in parts]
    return "".join(shown) + matcher.finish(), matcher.matched


def ends_at(stops, text):
    """The same by looking at the text one character longer at a time."""
    for n in range(1, len(text) + 1):
        found = [s for s in stops if text[:n].endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: n - len(stop)], stop
    return text, None


STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(STOPS, st.text("abc", max_size=12))
def test_character_by_character(stops, text):
    assert stream(stops, text) == ends_at(stops, text)


@given(STOPS, st.lists(st.text("abc", max_size=5), max_size=6))
def test_stops_are_the_same_however_text_is_cut(stops, parts):
    assert stream(stops, parts) == ends_at(stops, "".join(parts))


def test_holds_back_no_more_than_a_possible_prefix():
    matcher = StopMatcher(["STOP", "\n\n"])
    assert matcher.push("say ST") == ("say ", False)
    assert matcher.push("ART\n") == ("START", False)
    assert matcher.push("x") == ("\nx", False)
    assert matcher.push("one STO") == ("one ", False)
    assert matcher.push("P two") == ("", True)
    assert matcher.push("more") == ("", True) and matcher.finish() == ""
    assert matcher.matched == "STOP"


def test_first_complete_match_wins_then_the_longest():
    assert stream(["bc", "abcd"], ["xabcdy"]) == stream(["bc", "abcd"], ["xabc", "dy"]) == ("xa", "bc")
    assert stream(["bc", "abc"], ["xabcy"]) == ("x", "abc")
    assert stream(["cd", "xyz"], ["a xyz cd"]) == ("a ", "xyz")


def test_without_stops_and_with_bad_ones():
    assert stream([], ["a", "b"]) == ("ab", None)
    for bad in ("stop", [""]):
        with pytest.raises(UsageError, match="stop strings"):
            StopMatcher(bad)
