"""The page's files, read once, with the headers that keep it from running or asking anything that is not its own."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

# Nothing is inline and nothing comes from elsewhere; trusted-types: no text can be made into markup by any script.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    media_type: str
    headers: dict[str, str]


def _read() -> dict[str, PageFile]:
    found = {}
    for file in files("strata.server.page").joinpath("static").iterdir():
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        content = file.read_bytes()
        headers = HEADERS | {"ETag": f'"{sha256(content).hexdigest()[:16]}"'}
        found[path] = PageFile(content, _TYPES[file.name.rpartition(".")[2]], headers)
    return found


PAGE_FILES = _read()
PATHS = frozenset(PAGE_FILES)  # need no key, for a key is entered there
