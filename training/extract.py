"""Readers of unpacked packages: documents as (name, text). Names are stable, since they decide what is held out."""

import gzip
import html
import json
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

Documents = Iterator[tuple[str, str]]
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
_HAN = re.compile("[\u4e00-\u9fff]")
_MAX_FILE = 200_000  # characters of a file: larger ones are tables


def _files(root: Path, pattern: str) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob(pattern)):
        if not path.is_file() or path.is_symlink():
            continue
        text = path.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n")
        if 200 < len(text) < _MAX_FILE:
            yield str(path.relative_to(root)), text


def _entries(root: Path) -> Documents:
    """Entries of a dictd dictionary, cut by the offsets of its index."""
    path = next(root.rglob("*.dict.dz"))
    data = gzip.decompress(path.read_bytes())
    starts = set()
    for line in (
        path.with_name(path.name.replace(".dict.dz", ".index")).read_text(encoding="utf-8").splitlines()
    ):
        word, start, _ = line.split("\t")[:3]
        if not word.startswith("00"):
            starts.add(_base64(start))
    cuts = [*sorted(starts), len(data)]
    for begin, end in pairwise(cuts):
        entry = data[begin:end].decode("utf-8", errors="ignore").strip()
        if entry:
            yield f"{path.name}/{begin}", entry


def _base64(digits: str) -> int:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    value = 0
    for digit in digits:
        value = value * 64 + alphabet.index(digit)
    return value


def _question(name: str, entry: str) -> tuple[str, str]:
    """An entry as a turn of chat: the headword is asked for, the rest is the answer."""
    word, _, body = entry.partition("\n")
    body = "\n".join(line.strip() for line in body.strip().splitlines())
    return name, CHAT.format(f"What does “{word.strip()}” mean?", body)


def jargon(root: Path) -> Documents:
    """The Jargon File: runs of entries as prose, and every entry as a turn of chat, held out with its run."""
    entries = [text for _, text in _entries(root)]
    for first in range(0, len(entries), 12):
        run = entries[first : first + 12]
        yield f"jargon/{first}", "\n\n".join(run)
        for number, entry in enumerate(run):
            yield _question(f"jargon/{first}#{number}", entry)


def devil(root: Path) -> Documents:
    """The Devil's Dictionary, in runs of entries."""
    entries = list(_entries(root))
    for first in range(0, len(entries), 12):
        yield f"devil/{first}", "\n\n".join(text for _, text in entries[first : first + 12])


def wordnet(root: Path) -> Documents:
    """Entries long enough to be more than a synonym, as turns of chat."""
    for name, entry in _entries(root):
        if len(entry) > 160:
            word, _, body = entry.partition("\n")
            gloss = re.sub(r"\s+", " ", re.sub(r"\[(?:syn|ant): [^\]]*\]", "", body))
            yield name, CHAT.format(f"Define “{word.strip()}”.", gloss.strip())


def sword(root: Path) -> Documents:
    """A compressed text module: blocks of zlib, one a chapter; markup is dropped."""
    for part in ("ot", "nt"):
        index = next(root.rglob(part + ".bzs")).read_bytes()
        data = next(root.rglob(part + ".bzz")).read_bytes()
        for number, (offset, size, _) in enumerate(struct.iter_unpack("<III", index)):
            text = zlib.decompress(data[offset : offset + size]).decode("utf-8", errors="ignore")
            text = html.unescape(re.sub(r"<note.*?</note>|<title.*?</title>|<[^>]*>", "", text, flags=re.S))
            text = re.sub(r"[ \t]+", " ", text).strip()
            for piece, begin in enumerate(range(0, len(text), 20_000)):
                yield f"web/{part}/{number}/{piece}", text[begin : begin + 20_000]


def python_docs(root: Path) -> Documents:
    """Sources of Python's documentation."""
    yield from _files(root, "*.rst.txt")


def rust_books(root: Path) -> Documents:
    """The books that come with Rust, as text."""
    base = next(root.rglob("rust-doc/html"))
    for book in (
        "book",
        "nomicon",
        "reference",
        "rust-by-example",
        "embedded-book",
        "edition-guide",
        "rustc",
    ):
        for path in sorted((base / book).rglob("*.html")):
            if path.name in ("print.html", "toc.html"):
                continue
            page = path.read_text(encoding="utf-8", errors="ignore")
            match = re.search(r"<main>(.*?)</main>", page, re.S)
            if match and len(text := plain(match[1])) > 300:
                yield f"{book}/{path.relative_to(base)}", text


def plain(page: str) -> str:
    """HTML without its marks."""
    page = re.sub(r"<(script|style|button).*?</\1>", "", page, flags=re.S)
    page = re.sub(r"<(?:p|li|h\d|pre|tr|br)\b[^>]*>", "\n", page)
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()


def addresses_and_novels(root: Path) -> Documents:
    """State of the Union addresses and the chapters of Moby-Dick; lines that were broken are joined."""
    for part in ("sotu", "moby-dick"):
        base = next(path for path in root.rglob(part) if (path / "data").is_dir()) / "data"
        for path in sorted(base.glob("*.txt")):
            text = path.read_text(encoding="utf-8", errors="ignore")
            if path.name == "data.txt" or len(text) < 500:
                continue
            yield f"{part}/{path.name}", re.sub(r"(?<=\S)\n(?=\S)", " ", text.strip())


def python_files(root: Path) -> Documents:
    """Python sources."""
    yield from _files(root, "*.py")


def poems(root: Path) -> Documents:
    """Poems of one file of the collection in runs: title, author, lines. Classics with their sections."""
    base = next(root.rglob("dist"))
    for path in sorted(base.rglob("*.json")):
        if any(part in path.parts for part in ("rank", "strains", "error")) or "author" in path.name:
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        texts = [text for text in map(_poem, found if isinstance(found, list) else [found]) if text]
        for first in range(0, len(texts), 8):
            yield f"{path.relative_to(base)}/{first}", "\n\n".join(texts[first : first + 8])


def _poem(entry: object) -> str:
    if not isinstance(entry, dict):
        return ""
    title = entry.get("title") or entry.get("rhythmic") or entry.get("chapter") or ""
    lines = entry.get("paragraphs") or entry.get("content") or entry.get("para") or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines) or not lines:
        return ""
    head = f"{title}　{entry['author']}" if entry.get("author") else str(title)
    return "\n".join([head, *lines])


def chinese_code(root: Path) -> Documents:
    """Sources and documents that speak Chinese."""
    for pattern in ("*.py", "*.md", "*.rst"):
        for name, text in _files(root, pattern):
            if len(_HAN.findall(text)) > 100:
                yield name, text


def messages(root: Path) -> Documents:
    """Messages of an editor's language pack, a file of them a document."""
    for path in sorted(root.rglob("*.js*")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        found = [json.loads(f'"{m}"') for m in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text) if _HAN.search(m)]
        for first in range(0, len(found), 60):
            yield f"{path.relative_to(root)}/{first}", "\n".join(found[first : first + 60])
