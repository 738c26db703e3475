"""Draft vocabularies: built from scripts and a text, read back, refused where they are none, joined by what is seen."""

import json
from pathlib import Path

import numpy as np
import pytest

from strata.engine.drafts.vocabulary import LiveVocabulary
from strata.errors import ModelFileError, UsageError
from strata.gguf import open_model
from strata.models import draft_vocab
from strata.models.token_scripts import EVERYWHERE, SCRIPTS, script_of, token_scripts

MODEL = Path(__file__).parents[2] / "models/strata-mini/strata-mini.gguf"
VOCAB = 12032
NO_RUNS = (None, 5, [], [5], [[0]], [[0, VOCAB + 1]], [[-5, 6]], [[7, 7]], [[0, 1.5]])


def ids_in(path):
    return draft_vocab.load(path, VOCAB)


def test_scripts_of_texts():
    texts = {
        " the": "latin",
        "naïve": "latin",
        "é": "accented",
        "слово": "cyrillic",
        "你好": "han",
        "の": "kana",
        " 42": "symbols",
    }
    assert {text: script_of(text) for text in texts} == texts


def test_built_from_scripts(strata, tmp_path):
    done = strata("draft-vocab", "build", "--model", MODEL, "--only", "english", "--out", tmp_path / "v.json")
    scripts = token_scripts(open_model(MODEL))
    wanted = np.flatnonzero([SCRIPTS[s] in ("latin", *EVERYWHERE) for s in scripts])
    assert ids_in(tmp_path / "v.json").tolist() == wanted.tolist()
    counts = {line.split()[0]: line.replace(",", "").split()[1::2] for line in done.out.splitlines()}
    assert (
        counts["han"][0] == "0"
        and counts["latin"][0] == counts["latin"][1]
        and counts["all"][0] == str(len(wanted))
    )
    strata(
        "draft-vocab",
        "build",
        "--model",
        MODEL,
        "--only",
        "english",
        "--add",
        "han",
        "--out",
        tmp_path / "w.json",
    )
    added = np.setdiff1d(ids_in(tmp_path / "w.json"), wanted)
    assert len(added) and all(SCRIPTS[scripts[i]] == "han" for i in added)


def test_a_text_is_covered_with_as_few_tokens_as_can_be():
    text, held = [5, 5, 5, 6, 6, 7, 8, 9, 9, 9], np.array([9], np.int32)
    assert draft_vocab.covering(text, held, 0.3).tolist() == [9]
    assert draft_vocab.covering(text, held, 0.6).tolist() == [5, 9]
    assert draft_vocab.covering(text, held, 0.61).tolist() == [5, 6, 9]
    assert draft_vocab.covering(text, held, 1.0).tolist() == [5, 6, 7, 8, 9]


def test_a_text_of_another_script_joins(strata, tmp_path):
    (tmp_path / "t.txt").write_text("床前明月光疑是地上霜", encoding="utf-8")
    more = ("--cover-text", tmp_path / "t.txt", "--cover", "1")
    done = strata(
        "draft-vocab", "build", "--model", MODEL, "--only", "english", *more, "--out", tmp_path / "v.json"
    )
    assert "tokens added to cover 100.0%" in done.out
    scripts = token_scripts(open_model(MODEL))
    assert {SCRIPTS[scripts[i]] for i in ids_in(tmp_path / "v.json")} >= {"latin", "han"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "no draft vocabulary"),
        ("[" * 100_000, "no draft vocabulary"),
        ("[]", "no draft vocabulary"),
        ({"strata_draft_vocab": 2}, "of version 1"),
        ({"vocab_size": 5}, "for 5 tokens; the model has 12032"),
        *(({"runs": runs}, "stands where runs") for runs in NO_RUNS),
    ],
)  # fmt: skip
def test_what_is_no_draft_vocabulary(content, text, tmp_path):
    if isinstance(content, dict):
        content = json.dumps({"strata_draft_vocab": 1, "vocab_size": VOCAB, "runs": [[0, 9]], **content})
    (tmp_path / "v.json").write_text(content)
    with pytest.raises(ModelFileError, match=text):
        ids_in(tmp_path / "v.json")


def test_a_file_that_is_not_there_is_told_whatever_the_model(refused, smollm2_path, tmp_path):
    with pytest.raises(UsageError, match=r"--draft-vocab .*: No such file"):
        ids_in(tmp_path / "none.json")
    message = refused("run", "--model", smollm2_path, "--draft-vocab", tmp_path / "none.json", "hi", code=2)
    assert "No such file" in message


def test_no_draft_vocabulary_changes_a_text(strata, tmp_path):
    strata("draft-vocab", "build", "--model", MODEL, "--only", "english", "--out", tmp_path / "v.json")
    run = ("run", "--model", MODEL, "--max-tokens", 24, "床前明月光")
    assert strata(*run, "--draft-vocab", tmp_path / "v.json").out == strata(*run, "--mtp", "off").out


class Lists:
    """What is written, and how often all is forgotten."""

    def __init__(self):
        self.ids, self.forgotten = {}, 0

    def join(self, ids, begin):
        self.ids.update(enumerate(ids.tolist(), begin))

    def forget(self):
        self.forgotten += 1


def test_what_is_seen_joins_once_and_the_oldest_makes_room(monkeypatch):
    monkeypatch.setattr("strata.engine.drafts.vocabulary.SPARE", 3)
    lists = Lists()
    live = LiveVocabulary(np.array([0, 1], np.int32), 10, lists)
    live.see([1, 4, 5, 4])
    live.see([5, 0])
    assert (lists.ids, live.joined, lists.forgotten) == ({2: 4, 3: 5}, 2, 0)
    live.see([8, 9])
    assert ([lists.ids[i] for i in (2, 3, 4)], live.joined, lists.forgotten) == ([5, 8, 9], 3, 1)
    live.see([4])
    assert [lists.ids[i] for i in (2, 3, 4)] == [8, 9, 4], "4 had left and comes again"
