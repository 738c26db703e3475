"""`strata serve` and `strata config show`: everything wrong with settings is one line, before a model is loaded."""

import socket

import pytest

from strata.cli import main

WRONG = {
    "no TOML": ("[server\n", 2, "not valid TOML"),
    "not UTF-8": (b"[model]\npath = '\xff'\n", 2, "not valid TOML"),
    "unknown key": ("[infer]\nthread = 2\n", 2, "infer.thread is no setting (did you mean infer.threads?)"),
    "unknown section": ("[infre]\nthreads = 2\n", 2, "did you mean infer.threads?"),
    "text for a number": ("[server]\nport = '80'\n", 2, "server.port is '80'; it must be a whole number"),
    "number for text": ("[model]\npath = 5\n", 2, "model.path is 5; it must be text"),
    "real for a number": ("[infer]\nthreads = 1.5\n", 2, "infer.threads is 1.5; it must be a whole number"),
    "a list": ("[infer]\nthreads = [1]\n", 2, "infer.threads is [1]; it must be a whole number"),
    "too large": ("[server]\nport = 70000\n", 2, "--port is 70000; it must be from 0 to 65,535"),
    "no choice": ("[context]\ncache_dtype = 'f61'\n", 2, "did you mean f16?"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("command", [("serve", "--model", "/nowhere.gguf"), ("config", "show")])
def test_a_wrong_file(refused, tmp_path, command, name):
    content, code, text = WRONG[name]
    path = tmp_path / "strata.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if name == "number for text" and command[0] == "serve":
        command = ("serve",)  # a flag would count before it
    assert text in refused(*command, "--config", path, code=code)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "no model: give --model FILE"),
        (["--config", "/nowhere.toml"], 2, "/nowhere.toml: No such file"),
        (["--model", "/nowhere.gguf", "--port", "0"], 1, "no such file"),
        (["--model", "x", "--port", "many"], 2, "--port is 'many'; it must be a whole number"),
        (["--model", "x", "--port", "65536"], 2, "--port is 65536"),
        (["--model", "x", "--host", "256.1.1.1", "--api-key", "k"], 2, "cannot listen on 256.1.1.1:8080"),
        (["--model", "x", "--host", "0.0.0.0"], 2, "a key is needed"),
        (["--model", "x", "--heartbeat", "16"], 2, "at most 15"),
        (["--model", "x", "--prot", "1"], 2, "did you mean --port?"),
    ],
)
def test_wrong_flags(refused, arguments, code, text):
    assert text in refused("serve", *arguments, code=code)


def test_a_port_in_use(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("serve", "--model", "/nowhere.gguf", "--port", port, code=2)
    assert message == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port"
    )


def test_aliases_are_the_flags_they_stand_for(refused):
    """Each is taken by the parser, so that the error is the setting's own, under its own name."""
    for alias, flag in (("--max-model-len", "--max-context"), ("--max-num-seqs", "--parallel")):
        assert refused("serve", "-m", "x", alias, "-1", code=2).startswith(f"{flag} is -1; it must be")
    assert refused("run", "-m", "x", "--repetition-penalty", "0", "a", code=2).startswith("--repeat-penalty")


def test_a_key_is_never_shown(monkeypatch, capsys):
    monkeypatch.setenv("STRATA_API_KEY", "a-secret-key")
    with pytest.raises(SystemExit):
        main(["config", "show"])
    shown = capsys.readouterr().out
    assert "a-secret-key" not in shown and "(set)" in shown
