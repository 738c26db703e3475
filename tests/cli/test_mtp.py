"""`strata eval logits --mtp`: draft logits against their goldens, and what it refuses."""

import numpy as np
import pytest
from golden import ALL
from typer.testing import CliRunner

from oracles import nrmse
from strata.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, ["eval", "logits", "--threads", "2", "--kv", "f32", *map(str, arguments)])


@pytest.mark.parametrize("prefill", [0, 128])
@pytest.mark.parametrize("name", ["qwen35", "qwen4exp-two-streams"])
def test_draft_logits(name, prefill, tmp_path):
    case, out = ALL[name], tmp_path / "draft.npy"
    where = ["--mtp-model", case.draft_path] if case.draft_path else ["--mtp"]
    tokens = case.directory / "tokens.npy"
    done = run("--model", case.model_path, "--tokens", tokens, "--out", out, "--prefill", prefill, *where)
    assert done.exit_code == 0, done.output
    got = np.load(out)
    assert got.shape == case.draft_logits.shape
    assert nrmse(got, case.draft_logits) <= 1e-4


def test_a_model_without_a_draft_layer(tmp_path):
    case = ALL["qwen3next-quantised"]
    done = run(
        "--model", case.model_path, "--tokens", case.directory / "tokens.npy", "--out", tmp_path / "x.npy", "--mtp"
    )  # fmt: skip
    assert done.exit_code != 0
    assert "no draft layer" in str(done.exception or done.output)


def test_one_token_has_no_draft(tmp_path):
    np.save(tmp_path / "one.npy", np.array([3], np.int32))
    case = ALL["qwen35"]
    done = run(
        "--model", case.model_path, "--tokens", tmp_path / "one.npy", "--out", tmp_path / "x.npy", "--mtp"
    )  # fmt: skip
    assert done.exit_code != 0
    assert "need at least 2" in str(done.exception or done.output)
