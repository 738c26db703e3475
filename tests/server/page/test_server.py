"""The page on our own server: key, monitor, settings, headers."""

import json
import re
import time

from requests_over import TEXT, ask, post

from strata.server.page.files import CONTENT_POLICY, PAGE_FILES


def test_files_and_headers(tiny_server):
    for path, file in PAGE_FILES.items():
        status, headers, body = ask(tiny_server, "GET", path)
        assert (status, body) == (200, file.content)
        assert headers["Content-Security-Policy"] == CONTENT_POLICY
        assert headers["X-Content-Type-Options"] == "nosniff"
        again = ask(tiny_server, "GET", path, headers={"If-None-Match": headers["ETag"]})
        assert again[0] == 304 and again[2] == b""
    for path in ("/page/nothing.js", "/page/..%2f__init__.py", "/page/../files.py", "/page/%2e%2e/files.py"):
        assert ask(tiny_server, "GET", path)[0] == 404
    assert sum(len(file.content) for file in PAGE_FILES.values()) < 64 << 10


def test_all_that_the_page_loads_is_there():
    for path, file in PAGE_FILES.items():
        text = file.content.decode()
        named = re.findall(r'(?:src|href)="(page/[^"]+)"', text) + [
            f"page/{n}" for n in re.findall(r'from "\./([^"]+)"', text)
        ]
        assert {f"/{n}" for n in named} <= set(PAGE_FILES), path


def test_status_counts_what_was_done(tiny_server):
    def status():
        return json.loads(ask(tiny_server, "GET", "/page/status")[2])

    before = status()
    post(tiny_server, TEXT, {"prompt": [8] * 130, "max_tokens": 10, "ignore_eos": True})
    after = status()
    assert after["generated_tokens"] - before["generated_tokens"] == 10
    assert after["read_tokens"] - before["read_tokens"] == 130
    tiers = {(t["tier"], t["name"]): t for t in after["tiers"]}
    assert 0 <= tiers["ram", "KV pool"]["used"] < tiers["ram", "KV pool"]["total"]
    assert sum(part["bytes"] for part in after["plan"] if part["tier"] == "ram") > 0
    assert 0 < after["decode_share"] < 1 and after["first_token_seconds"] > 0


def test_settings_hide_secrets_and_places(serving, tiny_path):
    server = serving(
        tiny_path,
        server_options={"model": "/somewhere/secret.gguf", "api_key": "hidden-key"},
        keys=["hidden-key"],
        max_model_len=256,
    )
    status, _, body = ask(server, "GET", "/page/settings", headers={"x-api-key": "hidden-key"})
    assert status == 200 and b"somewhere" not in body and b"hidden-key" not in body
    shown = {s["flag"]: s["value"] for s in json.loads(body)["settings"]}
    assert shown["--api-key"] == shown["--model"] == "(set)" and shown["--port"] == "0"
    assert ask(server, "GET", "/page/settings")[0] == ask(server, "GET", "/page/status")[0] == 401


def test_a_key_is_asked_for(serving, tiny_path, tab, say):
    server = serving(tiny_path, keys=["the key"], max_model_len=256)
    page = tab(server.port)
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "the key")
    page.press("#key", "Enter")
    page.wait_for_selector("#model >> text=test-model")
    assert page.evaluate("localStorage.length") == 0


def test_chat_monitor_and_settings(smollm2_server, tab, say, until, monkeypatch):
    """Steps are held up a little, so that the answer is still there when the monitor looks."""
    engine, step = smollm2_server.engine, smollm2_server.engine.step
    monkeypatch.setattr(engine, "step", lambda: (time.sleep(0.05), step())[1])
    page = tab(smollm2_server.port)
    page.click("#wishes summary")
    page.fill("#max-tokens", "400")
    page.fill("#temperature", "0")
    say(page, "Count from one to a hundred.")
    until(page, "document.querySelector('article.assistant .body')?.textContent.length > 20")
    page.click("#tab-monitor")
    page.wait_for_selector("#requests td >> text=running")
    until(page, "/[1-9].* tok/.test(document.getElementById('figures').textContent)")
    until(page, "document.querySelectorAll('#tiers [role=meter]').length >= 3")
    page.click("#tab-chat")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Regenerate")
    page.click("#tab-monitor")
    page.wait_for_selector("#requests >> text=None are open")
    page.click("#tab-about")
    page.wait_for_selector("#settings td >> text=--max-body-mib")
