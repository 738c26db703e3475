"""Draft vocabularies: the tokens that a draft layer may propose. Fewer make its head cheaper; where the text's are
missing, its drafts are wasted."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strata.errors import ModelFileError, UsageError
from strata.models.token_scripts import EVERYWHERE, GROUPS, SCRIPTS

DEFAULT = ("english", "code", "cjk")
_VERSION = 1

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Coverage:
    """Tokens of one script that a draft vocabulary has, of all."""

    script: str
    held: int
    total: int


def scripts_named(names: Iterable[str]) -> tuple[str, ...]:
    """Scripts of names or groups; UsageError for one that is neither."""
    found: list[str] = []
    for name in names:
        if name not in GROUPS and name not in SCRIPTS:
            known = ", ".join((*GROUPS, *SCRIPTS))
            raise UsageError(f"{name} is no script that is known; {known} are")
        found += GROUPS.get(name, (name,))
    return tuple(dict.fromkeys((*found, *EVERYWHERE)))


def ids_of(scripts: NDArray[np.int8], names: Iterable[str]) -> Ids:
    """Token ids of scripts or groups, ascending."""
    wanted = [SCRIPTS.index(name) for name in scripts_named(names)]
    return np.flatnonzero(np.isin(scripts, wanted)).astype(np.int32)


def covering(token_ids: Sequence[int], held: Ids, share: float) -> Ids:
    """`held` and as many of a text's tokens, the most frequent first, as cover that share of the text."""
    ids, counts = np.unique(np.array(token_ids, np.int64), return_counts=True)
    inside = np.isin(ids, held)
    covered, order = int(counts[inside].sum()), np.argsort(-counts, kind="stable")
    added = []
    for i in order[~inside[order]].tolist():
        if covered >= share * len(token_ids):
            break
        covered += int(counts[i])
        added.append(int(ids[i]))
    return np.union1d(held, np.array(added, np.int64)).astype(np.int32)


def coverage(scripts: NDArray[np.int8], held: Ids) -> list[Coverage]:
    """By script, those first that have most tokens."""
    total = np.bincount(scripts, minlength=len(SCRIPTS))
    inside = np.bincount(scripts[held], minlength=len(SCRIPTS))
    order = np.argsort(-total, kind="stable").tolist()
    return [Coverage(SCRIPTS[i], int(inside[i]), int(total[i])) for i in order if total[i]]


def save(path: Path, held: Ids, vocab_size: int) -> None:
    """Writes ids as runs [begin, end)."""
    borders = np.flatnonzero(np.diff(held) != 1) + 1
    runs = [[int(part[0]), int(part[-1]) + 1] for part in np.split(held, borders) if len(part)]
    content = {"strata_draft_vocab": _VERSION, "vocab_size": vocab_size, "runs": runs}
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def load(path: Path, vocab_size: int) -> Ids:
    """Ids of a file that `save` wrote; ModelFileError where it is none, or for another vocabulary."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        made_for, runs = content["vocab_size"], content["runs"]
        held = np.concatenate([np.arange(begin, end, dtype=np.int32) for begin, end in runs])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: no draft vocabulary: {error}") from None
    if made_for != vocab_size or (len(held) and not 0 <= held.min() <= held.max() < vocab_size):
        raise ModelFileError(f"{path}: a draft vocabulary for {made_for} tokens; the model has {vocab_size}")
    return np.unique(held).astype(np.int32)
