"""Draft vocabularies: the tokens that a draft layer may propose. Fewer make its head cheaper; where the text's are
missing, its drafts are wasted."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    except OSError as error:
        raise UsageError(f"--draft-vocab {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("strata_draft_vocab") != _VERSION:
        made = "`strata draft-vocab build` makes one"
        raise ModelFileError(f"{path}: no draft vocabulary of version {_VERSION} ({made})")
    if (made_for := content.get("vocab_size")) != vocab_size:
        raise ModelFileError(f"{path}: a draft vocabulary for {made_for} tokens; the model has {vocab_size}")
    held, runs = np.zeros(vocab_size, bool), content.get("runs")
    run: Any
    for run in runs if isinstance(runs, list) and runs else [runs]:
        if not _is_run(run, vocab_size):
            raise ModelFileError(f"{path}: {run!r:.60} stands where runs [begin, end) of token ids must")
        held[run[0] : run[1]] = True
    return np.flatnonzero(held).astype(np.int32)


def _is_run(run: Any, vocab_size: int) -> bool:
    if not isinstance(run, list) or [type(i) for i in run] != [int, int]:
        return False
    return bool(0 <= run[0] < run[1] <= vocab_size)
