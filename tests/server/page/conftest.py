"""Headless Chromium, and servers that answer what a test wants."""

import contextlib
import http.server
import json
import shutil
import threading
import time
from types import SimpleNamespace

import pytest

from strata.server.page.files import PAGE_FILES


@pytest.fixture(scope="module")  # playwright keeps this thread's event loop running, which others need
def browser():
    """Chromium through playwright; skips saying what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium is installed")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def tab(browser):
    """`tab(port, width=...)`: the page of the server on that port. What it complains of, or asks elsewhere, fails the
    test."""
    contexts, faults = [], []

    def open_tab(port, width=1200, path="/"):
        origin = f"http://127.0.0.1:{port}"
        context = browser.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console", lambda m: faults.append(m.text) if m.type == "error" and "401" not in m.text else None
        )
        page.on("request", lambda r: None if r.url.startswith(origin) else faults.append(f"asked {r.url}"))
        page.goto(origin + path)
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert faults == []


class _Scripted(http.server.BaseHTTPRequestHandler):
    """The page's files, and chat answers that the test wrote."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        file = PAGE_FILES.get(self.path)
        if file is not None:
            self._send(file.content, file.media_type, file.headers)
        else:
            self._send(json.dumps({"data": [{"id": "scripted"}]}).encode(), "application/json", {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for delta in self.server.answers.pop(0):
            if callable(delta):
                delta()
                continue
            ended = {"finish_reason": delta.pop("finish_reason")} if "finish_reason" in delta else {}
            chunk = {"choices": [{"index": 0, "delta": delta, **ended}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, content, kind, headers):
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def scripted():
    """`scripted(answer, ...)`: a server with a list of deltas for each question; functions among them are called."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Scripted)
    server.daemon_threads = True
    server.bodies = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()

    def start(*answers):
        server.answers = list(answers)
        return SimpleNamespace(port=server.server_port, bodies=server.bodies)

    yield start
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture
def say():
    """Types a message and sends it."""

    def send(page, text):
        page.fill("#message", text)
        page.press("#message", "Enter")

    return send


@pytest.fixture
def until():
    """Waits until a script's expression is true; playwright's own way would need `eval`, which the page forbids."""

    def wait(page, expression, seconds=60):
        deadline = time.monotonic() + seconds
        while not page.evaluate(expression):
            assert time.monotonic() < deadline, f"never: {expression}"
            time.sleep(0.02)

    return wait
