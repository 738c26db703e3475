"""The draft vocabulary while it serves: what the file or the default says, and ids that texts bring along."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from strata.gguf import ModelFile
from strata.models import draft_vocab, token_scripts

Ints = NDArray[np.int32]
_WORTH = 0.95  # of the vocabulary: a list of more costs more than it saves
SPARE = 4096  # ids that may join; then the oldest make room


class Joined(Protocol):
    """Where ids are written to."""

    def join(self, ids: Ints, begin: int) -> None:
        """Puts ids into the list from `begin` on; the list grows to hold them."""

    def forget(self) -> None:
        """Lets the logits of all ids go that are not in the list."""


def chosen(file: ModelFile, setting: str, vocab_size: int) -> Ints | None:
    """Ids that `--draft-vocab` names; None for all."""
    if setting == "full":
        return None
    if setting != "auto":
        return _unless_all(draft_vocab.load(Path(setting), vocab_size), vocab_size)
    scripts = token_scripts.token_scripts(file)
    if scripts is None or len(scripts) != vocab_size:
        return None
    return _unless_all(draft_vocab.ids_of(scripts, draft_vocab.DEFAULT), vocab_size)


def _unless_all(ids: Ints, vocab_size: int) -> Ints | None:
    """None where leaving some out would save next to nothing."""
    return None if len(ids) > _WORTH * vocab_size else ids


class LiveVocabulary:
    """Ids join as they are seen in prompts and in what is generated."""

    def __init__(self, fixed: Ints, vocab_size: int, into: Joined):
        self._inside = np.zeros(vocab_size, bool)
        self._inside[fixed] = True
        self._begin, self._into = len(fixed), into
        self._spare: list[int] = []
        self._most = min(SPARE, vocab_size - len(fixed))

    @property
    def joined(self) -> int:
        """Ids that joined."""
        return len(self._spare)

    def see(self, token_ids: Sequence[int] | Ints) -> None:
        """Takes in ids of a text."""
        if not self._most:
            return
        ids = np.asarray(token_ids, np.int32)
        fresh = np.unique(ids[~self._inside[ids]])
        if not len(fresh):
            return
        fresh, held = fresh[-self._most :], len(self._spare)
        lost = max(held + len(fresh) - self._most, 0)
        self._inside[self._spare[:lost]] = False
        self._spare = [*self._spare[lost:], *fresh.tolist()]
        self._inside[fresh] = True
        if lost:
            self._into.forget()
        begin = 0 if lost else held
        self._into.join(np.array(self._spare[begin:], np.int32), self._begin + begin)
