"""Help, version, unknown words, and the ways a command can end; nothing here loads a model."""

import json
import os
import signal
import subprocess
import sys

import pytest

import strata
from strata.cli.main import one_line
from strata.config import OPTIONS, SETTINGS, ServerOptions, ServingOptions
from strata.errors import ModelFileError, UsageError


def test_help_names_every_command(strata):
    for arguments in ([], ["--help"]):
        done = strata(*arguments)
        assert done.code == 0
        assert all(word in done.out for word in ("run", "inspect", "verify", "benchmark", "eval"))


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["chat"],
        ["completion"],
        ["inspect"],
        ["verify"],
        ["benchmark"],
        ["serve"],
        ["config"],
        ["config", "show"],
        ["convert"],
        ["synth"],
        ["eval"],
        ["eval", "logits"],
        ["eval", "perplexity"],
    ],
)
def test_every_command_explains_itself(strata, command):
    done = strata(*command, "--help")
    assert done.code == 0
    assert done.out.startswith("Usage: strata " + " ".join(command))


@pytest.mark.parametrize("command", ["run", "chat"])
def test_help_has_every_setting(strata, command):
    text = strata(command, "--help").out
    elsewhere = {"max_num_seqs", *(o.name for o in (*ServerOptions.options(), *ServingOptions.options()))}
    missing = [o.flag for o in OPTIONS.values() if o.flag not in text and o.name not in elsewhere]
    assert missing == []
    assert "STRATA_THREADS" in text


def test_serve_help_has_every_setting(strata):
    text = strata("serve", "--help").out
    settings = [o for cls in SETTINGS for o in cls.options()]
    assert [o.flag for o in settings if o.flag not in text] == []


def test_version(strata):
    assert strata("--version").out == "strata 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(["rnu"], "run"), (["eval", "logit"], "logits"), (["run", "--temprature", "1"], "--temperature")],
)
def test_unknown_words_suggest_the_nearest(refused, arguments, near):
    assert f"ean {near}" in refused(*arguments, code=2).replace("'", "")


@pytest.mark.parametrize(
    "arguments", [["run"], ["eval"], ["verify"], ["run", "--model"], ["verify", "a", "b"]]
)
def test_missing_and_extra_words(refused, arguments):
    refused(*arguments, code=2)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ModelFileError("bad\nfile \x1b[31m"), 1, r"bad\nfile \x1b[31m"),
        (UsageError("no"), 2, "no"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "l.npy"), 1, "l.npy: No space left on device"),
        (MemoryError(), 1, "out of memory: try a shorter --max-context or a smaller model"),
    ],
)
def test_every_failure_is_one_line(refused, monkeypatch, error, code, text):
    def fail(*_):
        raise error

    monkeypatch.setattr("strata.gguf.verify", fail)
    assert refused("verify", "x", code=code) == text


def test_a_fault_of_ours_is_one_line_too(strata, monkeypatch):
    monkeypatch.setattr("strata.gguf.verify", lambda *_: 1 // 0)
    done = strata("verify", "x")
    assert done.code == 1
    assert done.err.startswith("strata: error: unexpected ZeroDivisionError: ")
    assert done.err.endswith("(set STRATA_LOG=debug for the traceback)\n")


def test_debug_shows_the_traceback(strata, monkeypatch):
    monkeypatch.setenv("STRATA_LOG", "debug")
    done = strata("verify", "/nowhere/x.gguf")
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("strata: error: ")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("STRATA_THREADS", "many", "STRATA_THREADS is 'many'; it must be a whole number"),
        ("STRATA_THREADS", "-2", "--threads is -2; it must be from 0 to 1,024"),
        ("STRATA_TREADS", "2", "STRATA_TREADS is no setting (did you mean STRATA_THREADS?)"),
        ("STRATA_LOG", "loud", "STRATA_LOG is loud; it must be one of debug, info, warning, error"),
    ],
)
def test_bad_variables(refused, monkeypatch, name, value, text):
    monkeypatch.setenv(name, value)
    assert refused("run", "--model", "x", "hello", code=2) == text


def test_broken_pipe_is_quiet():
    """Whoever reads the output leaves before the first byte."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "from strata.cli import main; main(['--help'])"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("closing", "arguments", "code", "words"),
    [
        ("<&-", "run --model x -", 2, "standard input is closed"),
        (">&-", "--version", 0, ""),
        (">&-", "verify /nowhere.gguf", 1, "no such file"),
        ("2>&-", "verify /nowhere.gguf", 1, ""),
    ],
)
def test_closed_streams(closing, arguments, code, words):
    command = f"exec {sys.executable} -c 'from strata.cli import main; main()' {arguments} {closing}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert words in done.stderr
    assert "unexpected" not in done.stderr
    assert "error" not in done.stdout


def test_json_is_json_on_a_terminal_without_utf8():
    script = "from strata.cli.output import print_json; print_json({'text': 'é \U0001f600'})"
    environment = os.environ | {"PYTHONIOENCODING": "ascii:backslashreplace"}
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, env=environment
    ).stdout
    assert json.loads(out) == {"text": "é \U0001f600"}


def test_interrupt_is_one_line():
    # A job in the background inherits SIGINT ignored.
    script = "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from strata import gguf\nfrom strata.cli import main\n"
    script += "gguf.verify = lambda *_: os.kill(os.getpid(), signal.SIGINT)\nmain(['verify', 'x'])\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == "strata: error: interrupted\n"


def test_help_loads_nothing_heavy():
    """What start-up costs is what it imports."""
    script = "import sys\nfrom strata.cli.main import _invoke\n_invoke(['--help'])\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = {name.split(".")[0] for name in out.splitlines()[-1].split()}
    assert "typer" in loaded
    assert loaded.isdisjoint({"numpy", "tokenizers", "pydantic", "rich"})


def test_package_import_loads_nothing():
    assert strata.__version__ == "0.1.0"
    script = "import sys\nimport strata\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert {name for name in out.split() if name.startswith(("strata.", "numpy", "typer"))} == set()


def test_one_line_keeps_text_and_escapes_the_rest():
    assert one_line("naïve — 日本") == "naïve — 日本"
    assert one_line("a\nb\x1b\udc80") == "a\\nb\\x1b\\udc80"
