"""Drafts from the text itself: what followed where the text's last tokens stood before."""

from collections.abc import Sequence
from dataclasses import dataclass

KEY = 3  # tokens that must agree for a place to be looked at
CANDIDATES = 8  # latest places of a key that are compared
LONGEST = 32  # agreement beyond this makes no place better


@dataclass(frozen=True)
class Found:
    """Tokens that followed the best place, and how many before it agree with the text's end."""

    token_ids: list[int]
    agreed: int


class Lookup:
    """Of one text, which only grows. What is found depends on the text alone."""

    def __init__(self, token_ids: Sequence[int]):
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}  # after each key's occurrences
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Takes in tokens; a key counts once a token follows it."""
        tokens, places = self.tokens, self._places
        begin = max(len(tokens), KEY)
        tokens += token_ids
        for at in range(begin, len(tokens)):
            key = tuple(tokens[at - KEY : at])
            found = places.get(key)
            if found is None:
                places[key] = [at]
            else:
                found.append(at)

    def find(self, most: int) -> Found | None:
        """Up to `most` tokens after the place whose past agrees longest with the text's end; the latest of equals."""
        tokens = self.tokens
        found = self._places.get(tuple(tokens[-KEY:])) if len(tokens) > KEY else None
        if not found or most < 1:
            return None
        best, agreed = 0, 0
        for at in reversed(found[-CANDIDATES:]):
            length = self._agreement(at)
            if length > agreed:
                best, agreed = at, length
            if agreed >= LONGEST:
                break
        return Found(self._after(best, most), agreed)

    def _agreement(self, at: int) -> int:
        tokens, end = self.tokens, len(self.tokens)
        length, longest = KEY, min(LONGEST, at)
        while length < longest and tokens[at - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length

    def _after(self, at: int, most: int) -> list[int]:
        """Tokens from a place on; a place that runs into the text's end repeats what lies between."""
        tokens = self.tokens
        period = len(tokens) - at
        return [tokens[at + i % period] for i in range(most)]
