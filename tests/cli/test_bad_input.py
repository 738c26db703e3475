"""Bad input to commands: one line that says what and why, before anything expensive happens where possible."""

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from strata.cli.logits_file import LogitsFile
from strata.errors import UsageError
from strata.gguf import write_model

ABSURD = [
    ("--temperature", "-1"),
    ("--temperature", "nan"),
    ("--temperature", "inf"),
    ("--temperature", "hot"),
    ("--top-p", "0"),
    ("--top-p", "1.01"),
    ("--min-p", "1"),
    ("--min-p", "-0.1"),
    ("--top-k", "-1"),
    ("--top-k", "1.5"),
    ("--repeat-penalty", "0"),
    ("--repeat-penalty", "-1"),
    ("--repeat-penalty", "1e-4"),
    ("--presence-penalty", "nan"),
    ("--frequency-penalty", "1e9"),
    ("--max-tokens", "0"),
    ("--max-tokens", "-5"),
    ("--threads", "-1"),
    ("--threads", "100000"),
    ("--seed", "-1"),
    ("--kv", "f8"),
    ("--backend", "gpu"),
    ("--isa", "sse"),
    ("--prefill", "-1"),
    ("--max-context", "-1"),
]


@pytest.mark.parametrize(("flag", "value"), ABSURD)
def test_absurd_parameters(refused, flag, value):
    message = refused("run", "--model", "/nowhere.gguf", flag, value, "hello", code=2)
    assert message.startswith(f"{flag} is ")
    assert "must be" in message


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        ([], b"", "no prompt: give it as the argument, with --prompt, or - for standard input"),
        ([""], b"", "the prompt is empty"),
        (["-"], b"", "the prompt is empty"),
        (["-"], b"caf\xe9", "the prompt is not valid UTF-8: byte 0xe9 at offset 3"),
        (["a\udcffb"], b"", "the prompt is not valid UTF-8: byte 0xff at offset 1"),
        (["a", "--prompt", "b"], b"", "two prompts: give one as the argument or with --prompt, not both"),
        (["a", "--stop", ""], b"", "--stop is empty"),
        (["a", "--stop", "b\udcff"], b"", "--stop is not valid UTF-8: byte 0xff at offset 1"),
    ],
)
def test_prompts(refused, arguments, stdin, text):
    assert refused("run", "--model", "/nowhere.gguf", *arguments, stdin=stdin, code=2) == text


COMMANDS = [
    ("inspect", "{file}"),
    ("verify", "{file}"),
    ("run", "--model", "{file}", "hello"),
    ("benchmark", "--model", "{file}", "--prompt-len", "4", "--gen-len", "4"),
    ("eval", "perplexity", "--model", "{file}", "--text", __file__),
]


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory, smollm2_path):
    root = tmp_path_factory.mktemp("bad")
    (root / "empty.gguf").write_bytes(b"")
    (root / "text.gguf").write_text("not a model " * 10)
    with smollm2_path.open("rb") as file:
        (root / "short.gguf").write_bytes(file.read(10_000_000))
    (root / "directory.gguf").mkdir()
    (root / "loop.gguf").symlink_to(root / "loop.gguf")
    write_model(root / "mamba.gguf", {"general.architecture": "mamba"}, {})
    return root


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c[:2]))
@pytest.mark.parametrize("name", ["missing", "empty", "text", "short", "directory", "loop"])
def test_unusable_model_files(refused, bad_files, command, name):
    path = bad_files / f"{name}.gguf"
    message = refused(*(word.format(file=path) for word in command), code=1)
    assert str(path) in message


def test_unsupported_architecture_names_the_supported(refused, bad_files):
    message = refused("run", "--model", bad_files / "mamba.gguf", "hello", code=1)
    assert "mamba" in message
    assert "llama" in message


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros(3, np.float32), "holds float32 [3]; it must hold whole numbers in one dimension"),
        (np.zeros((2, 3), np.int32), "holds int32 [2, 3]; it must hold whole numbers in one dimension"),
        (np.zeros(0, np.int64), "holds no tokens"),
        (np.array([1, 49152], np.int64), "token 49152 at 1 is outside the vocabulary of 49152"),
        (np.array([-1], np.int8), "token -1 at 0 is outside the vocabulary of 49152"),
    ],
)
def test_token_files(refused, tmp_path, smollm2_path, array, text):
    path = tmp_path / "t.npy"
    np.save(path, array)
    command = ("--model", smollm2_path, "--tokens", path)
    assert text in refused("eval", "logits", *command, "--out", tmp_path / "l.npy", code=2)
    assert text in refused("eval", "perplexity", *command, code=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.npy"]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"nonsense", b"PK\x05\x06" + bytes(18)])
def test_files_that_are_no_arrays(refused, tmp_path, content):
    path = tmp_path / "t.npy"
    path.write_bytes(content)
    refused(
        "eval", "logits", "--model", "/nowhere.gguf", "--tokens", path, "--out", tmp_path / "l.npy", code=2
    )


def test_pickled_arrays_are_not_run(refused, tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(
        "eval", "logits", "--model", "/nowhere.gguf", "--tokens", path, "--out", tmp_path / "l.npy", code=2
    )


def test_a_pipe_is_written_to_and_stays(strata, tmp_path, smollm2_path):
    """As /dev/null: a file beside it would take its place."""
    np.save(tmp_path / "t.npy", np.arange(2))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        command = ("--model", smollm2_path, "--tokens", tmp_path / "t.npy", "--out", pipe)
        done = strata("eval", "logits", *command)
    rows = np.load(io.BytesIO(read.result()))
    assert hashlib.sha256(rows.tobytes()).hexdigest() == done.out.split()[0]
    assert pipe.is_fifo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pipe", "t.npy"]
    with pytest.raises(UsageError, match="not a regular file"):
        write_model(pipe, {}, [])


def test_logits_that_are_not_whole_leave_no_file(tmp_path):
    path = tmp_path / "l.npy"
    with pytest.raises(KeyboardInterrupt), LogitsFile(path, 2, 3) as file:
        file.write(np.zeros((1, 3), np.float32))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with LogitsFile(path, 1, 3) as file:
        file.write(np.ones((1, 3), np.float32))
    assert np.load(path).tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("out", ["no/such/l.npy", ".", ""])
def test_output_that_cannot_be_written(refused, tmp_path, smollm2_path, out):
    np.save(tmp_path / "t.npy", np.arange(3))
    command = ("--model", smollm2_path, "--tokens", tmp_path / "t.npy", "--out", out and tmp_path / out)
    refused("eval", "logits", *command, code=2)


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        ("5", "must be ID=VALUE"),
        ("x=1", "must be ID=VALUE"),
        ("5=nan", "the value must be a number"),
        ("5=-inf", "the value must be a number from -1e+38"),
        ("5=1e39", "the value must be a number from -1e+38"),
        ("49152=1", "outside the vocabulary of 49152"),
        ("-1=1", "outside the vocabulary of 49152"),
    ],
)
def test_logit_bias(refused, smollm2_path, bias, text):
    assert text in refused("run", "--model", smollm2_path, "--logit-bias", bias, "hello", code=2)


def test_context_too_long_says_how_long(refused, smollm2_path):
    message = refused(
        "run", "--model", smollm2_path, "--max-context", "8", "one two three four five " * 4, code=1
    )
    assert "8" in message
    assert any(int(word) >= 20 for word in message.replace(";", " ").split() if word.isdigit())
    message = refused("run", "--model", smollm2_path, "--max-context", "10000000", "hello", code=1)
    assert "10000000" in message
    assert "8192" in message
    message = refused("benchmark", "--model", smollm2_path, "--prompt-len", "8192", code=1)
    assert "9216 tokens" in message
    assert "--max-context" not in message, "benchmark has no such option"


def test_perplexity_needs_one_source_with_two_tokens(refused, tmp_path, smollm2_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    model = ("eval", "perplexity", "--model", smollm2_path)
    assert refused(*model, code=2) == "give either --text or --tokens"
    assert "needs at least 2" in refused(*model, "--text", tmp_path / "a.txt", code=2)
    assert "UTF-8" in refused(*model, "--text", tmp_path / "latin.txt", code=2)
    assert "No such file" in refused(*model, "--text", tmp_path / "none.txt", code=2)
    assert "--context" in refused(*model, "--text", tmp_path / "a.txt", "--context", "1", code=2)
