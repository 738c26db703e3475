"""Who may ask: hosts, origins, keys; and what a server that others can reach needs before it starts."""

import json
from types import SimpleNamespace

import pytest
from requests_over import CHAT, COUNT, TEXT, ask, post
from tiny import write_tiny_llama

from strata.config import ServerOptions
from strata.errors import UsageError
from strata.server import check_access, read_keys
from strata.server.guard import Access

BODY = {"prompt": [1, 2], "max_tokens": 1}


@pytest.fixture(scope="module")
def locked(tmp_path_factory, tokenizer_metadata, serving_module):
    path = write_tiny_llama(tmp_path_factory.mktemp("locked") / "tiny.gguf", **tokenizer_metadata)
    options = {"cors_origins": "https://a.example", "allowed_hosts": "box.lan"}
    return serving_module(path, server_options=options, keys=["first-key", "second-key"], threads=1)


def status(server, headers, path=TEXT):
    return post(server, path, BODY, headers)[0]


def test_a_key_is_needed_and_any_of_them_will_do(locked):
    assert status(locked, {}) == 401
    for key in ("first-key", "second-key"):
        assert status(locked, {"Authorization": f"Bearer {key}"}) == 200
        assert status(locked, {"x-api-key": key}) == 200
    for wrong in ("first-ke", "first-key ", "FIRST-KEY", "", "first-keysecond-key", "\u00e9"):
        assert status(locked, {"Authorization": f"Bearer {wrong}x"}) == 401
    assert status(locked, {"Authorization": "Basic first-key"}) == 401


def test_a_refusal_has_the_shape_of_its_protocol(locked):
    code, headers, answer = ask(locked, "POST", TEXT, BODY)
    assert (code, headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(answer)["error"]["type"] == "authentication_error"
    assert post(locked, COUNT, {})[1]["type"] == "error"


def test_health_is_open_and_metrics_are_not(locked):
    assert ask(locked, "GET", "/health")[0] == 200
    assert ask(locked, "GET", "/metrics")[0] == 401


def test_every_key_is_compared_whichever_is_right(monkeypatch):
    seen = []
    monkeypatch.setattr("strata.server.guard.hmac.compare_digest", lambda a, b: seen.append(b) or a == b)
    access = Access.of(ServerOptions(), ["a", "b", "c"])
    scope = {"path": TEXT, "method": "POST", "headers": [(b"x-api-key", b"a")]}
    assert access.refusal(scope) is None and len(seen) == 3


@pytest.mark.parametrize("headers", [{"Host": "[::1"}, {"Host": "localhost", "Origin": "http://["}])
def test_headers_that_make_no_sense_are_refused(tiny_server, headers):
    assert status(tiny_server, headers) == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1"])
def test_a_name_that_was_pointed_here_is_not_answered(tiny_server, host):
    assert status(tiny_server, {"Host": host}) == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080"])
def test_our_own_names_are(tiny_server, host):
    assert status(tiny_server, {"Host": host}) == 200


def test_other_names_by_option(locked):
    key = {"x-api-key": "first-key"}
    assert status(locked, {"Host": "box.lan:8080", **key}) == 200
    assert status(locked, {"Host": "other.lan", **key}) == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_pages_of_others_may_not_ask(tiny_server, origin):
    assert status(tiny_server, {"Origin": origin}) == 403


def test_our_own_page_may(tiny_server):
    assert status(tiny_server, {"Origin": f"http://127.0.0.1:{tiny_server.port}"}) == 200


def test_no_page_is_let_in_by_headers_unless_named(tiny_server, locked):
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    code, headers, _ = ask(tiny_server, "OPTIONS", CHAT, headers=preflight)
    assert code == 403 and headers["access-control-allow-origin"] is None
    code, headers, _ = ask(locked, "OPTIONS", CHAT, headers=preflight)
    assert (code, headers["access-control-allow-origin"]) == (200, "https://a.example")
    answer = ask(locked, "POST", TEXT, BODY, {"Origin": "https://a.example", "x-api-key": "first-key"})
    assert (answer[0], answer[1]["access-control-allow-origin"]) == (200, "https://a.example")


def test_a_server_that_others_can_reach_needs_a_key(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.0.1"):
        with pytest.raises(UsageError, match="a key is needed"):
            check_access(ServerOptions(host=host))
        check_access(ServerOptions(host=host, api_key="k"))
    check_access(ServerOptions())
    with pytest.raises(UsageError, match="holds no key"):
        (tmp_path / "empty").write_text("\n")
        read_keys(ServerOptions(api_key_file=str(tmp_path / "empty")))
    (tmp_path / "keys").write_text("a\n\nb\n")
    assert read_keys(ServerOptions(api_key="c, d", api_key_file=str(tmp_path / "keys"))) == [
        "c",
        "d",
        "a",
        "b",
    ]


def test_keys_are_not_kept_as_they_are():
    access = Access.of(ServerOptions(), ["secret"])
    assert "secret" not in repr(SimpleNamespace(access=access))
