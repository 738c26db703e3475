"""strata.toml: values, where they come from, and one clear line for everything that is wrong."""

import pytest

from strata.cli.serve import lines
from strata.config import EngineOptions, ServerOptions
from strata.config.file import read_config
from strata.errors import UsageError

RECIPE = """
[model]
path = "model.gguf"
quant = "IQ3_XXS"
[context]
context_length = 4096
cache_dtype = "f32"
[gpu]
device_id = 0
[infer]
decode_batch = 4
flash_attn = true
[server]
port = 9000
"""


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "strata.toml"
        path.write_text(text, encoding="utf-8")
        return read_config(path)

    return write


def test_a_recipe_sets_what_it_names(config):
    values = config(RECIPE)
    engine = EngineOptions.resolve({}, {}, values)
    assert (engine.max_model_len, engine.kv, engine.max_num_seqs, engine.prefill) == (4096, "f32", 4, "auto")
    server = ServerOptions.resolve({"port": "9001"}, {}, values)
    assert (server.model, server.port) == ("model.gguf", 9001)


def test_flag_variable_file_default_in_that_order(config):
    values = config("[infer]\nthreads = 1\n")
    for flags, variables, want in (
        ({"threads": "3"}, {"STRATA_THREADS": "2"}, (3, "--threads")),
        ({}, {"STRATA_THREADS": "2"}, (2, "STRATA_THREADS")),
        ({}, {}, (1, "[infer.threads]")),
    ):
        assert EngineOptions.sources(flags, variables, values)["threads"] == want
    assert EngineOptions.sources({}, {}, {})["threads"] == (0, "default")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[infer]\nthread = 2\n", r"infer.thread is no setting \(did you mean infer.threads\?\)"),
        ("[infre]\nthreads = 2\n", r"did you mean infer.threads"),
        ("[context]\nthreads = 2\n", r"context.threads is no setting \(did you mean infer.threads"),
        ("port = 1\n", "port stands outside any section"),
        ("[server]\nport = \n", "not valid TOML"),
    ],
)
def test_what_is_unknown_or_malformed_is_named(config, text, message):
    with pytest.raises(UsageError, match=message):
        config(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nport = 'x'\n", "server.port is 'x'; it must be a whole number"),
        ("[server]\nport = true\n", "it must be a whole number"),
        ("[server]\nport = 70000\n", "--port is 70000; it must be from 0 to"),
        ("[context]\ncache_dtype = 'f61'\n", "did you mean f16"),
    ],
)
def test_values_are_checked(config, text, message):
    with pytest.raises(UsageError, match=message):
        EngineOptions.resolve({}, {}, config(text))
        ServerOptions.resolve({}, {}, config(text))


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_config(tmp_path / "none.toml")


def test_show_tells_value_source_and_effect(config):
    shown = lines({"STRATA_THREADS": "2"}, config("[server]\nport = 9000\n"))
    assert any("server.port" in s and "9000" in s and "[server.port]" in s for s in shown)
    assert any("infer.threads" in s and "STRATA_THREADS" in s and "CPU threads" in s for s in shown)
