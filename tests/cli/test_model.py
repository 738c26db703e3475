"""Commands that compute, on the small real model."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from strata.bench.perplexity import negative_log_likelihood

PROMPT = "The capital of France is"
TOKENS = [504, 3575, 282, 4649, 314, 7042, 30, 198, 504, 2018]

MINI = Path(__file__).parents[2] / "models/strata-mini/strata-mini.gguf"


@pytest.fixture
def tokens_file(tmp_path):
    path = tmp_path / "t.npy"
    np.save(path, np.array(TOKENS, np.int32))
    return path


def test_run_streams_the_answer_and_tells_speeds(strata, smollm2_path):
    done = strata("run", "--model", smollm2_path, "--max-tokens", 4, PROMPT)
    assert done.code == 0
    assert done.out.startswith(" Paris")
    assert done.err.startswith("prompt: 5 tokens, ")
    assert "generation: 4 tokens, " in done.err


def test_run_reads_the_prompt_from_three_places(strata, smollm2_path):
    base = ("run", "--model", smollm2_path, "--max-tokens", 3)
    texts = {
        strata(*base, PROMPT).out,
        strata(*base, "--prompt", PROMPT).out,
        strata(*base, "-", stdin=PROMPT.encode()).out,
    }
    assert len(texts) == 1


def test_json_holds_the_answer_and_its_figures(strata, smollm2_path):
    done = strata("run", "--model", smollm2_path, "--max-tokens", 2, "--json", PROMPT)
    answer = json.loads(done.out)
    assert answer["text"].startswith(" Paris")
    assert (answer["prompt_tokens"], answer["generated_tokens"], answer["finish_reason"]) == (5, 2, "length")
    assert answer["prompt_tps"] > 0
    assert done.err == ""


def test_inspect_as_json(strata, smollm2_path):
    found = json.loads(strata("inspect", smollm2_path, "--json").out)
    assert (found["architecture"], found["context_length"]) == ("llama", 8192)
    assert found["parameters"] == sum(role["parameters"] for role in found["roles"].values())


def test_run_ends_at_a_stop_text_and_at_the_end_of_text(strata, smollm2_path):
    stopped = strata("run", "--model", smollm2_path, "--stop", "ari", "--json", PROMPT)
    assert json.loads(stopped.out)["text"] == " P"
    assert json.loads(stopped.out)["finish_reason"] == "stop"
    chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ended = json.loads(strata("run", "--model", smollm2_path, "--json", chat).out)
    assert (ended["text"], ended["finish_reason"]) == ("The capital of France is Paris.", "stop")


def test_control_tokens_as_plain_text_are_other_tokens(strata, smollm2_path):
    base = ("run", "--model", smollm2_path, "--max-tokens", 1, "--json", "<|im_start|>")
    special, plain = (
        json.loads(strata(*base, *more).out)["prompt_tokens"] for more in ((), ("--no-special",))
    )
    assert special == 1
    assert plain > 1


def test_seed_and_bias_reach_the_sampler(strata, smollm2_path):
    def text(*more):
        return strata("run", "--model", smollm2_path, "--max-tokens", 6, *more, PROMPT).out

    hot = ("--temperature", "1.5")
    assert text(*hot, "--seed", "7") == text(*hot, "--seed", "7")
    assert len({text(*hot, "--seed", str(seed)) for seed in range(4)}) > 1
    assert text("--logit-bias", "7042=-100") != text()


def logits(strata, model, tokens_file, out, *more):
    done = strata("eval", "logits", "--model", model, "--tokens", tokens_file, "--out", out, *more)
    assert done.code == 0
    digest = done.out.split()[0]
    rows = np.load(out)
    assert rows.shape == (len(TOKENS), 49152)
    assert rows.dtype == np.float32
    assert hashlib.sha256(rows.tobytes()).hexdigest() == digest
    return digest, rows


def test_eval_logits_do_not_depend_on_threads_or_chunks(strata, smollm2_path, tokens_file, tmp_path):
    out = tmp_path / "l.npy"
    first, _ = logits(strata, smollm2_path, tokens_file, out)
    for more in (("--threads", 1), ("--threads", 2), ("--prefill", 0), ("--prefill", 3)):
        assert logits(strata, smollm2_path, tokens_file, out, *more)[0] == first
    other, _ = logits(strata, smollm2_path, tokens_file, out, "--kv", "f32")
    assert other != first  # so the digest does see small differences
    assert sorted(p.name for p in tmp_path.iterdir()) == ["l.npy", "t.npy"]


def test_eval_logits_of_each_backend(strata, smollm2_path, tokens_file, tmp_path):
    def run(backend):
        return logits(strata, smollm2_path, tokens_file, tmp_path / "l.npy", "--backend", backend)

    (cpu, rows), (contract, _), (reference, exact) = run("cpu"), run("contract"), run("reference")
    assert cpu == contract
    assert cpu != reference
    error = np.sqrt(np.mean((rows - exact) ** 2) / np.mean(exact**2))
    assert error < 0.06  # what int8 activations cost on this file
    shifted = np.sqrt(np.mean((rows[1:] - exact[:-1]) ** 2) / np.mean(exact**2))
    assert shifted > 0.2


def test_eval_perplexity(strata, smollm2_path, tmp_path, jargon_text):
    text = tmp_path / "t.txt"
    text.write_text(jargon_text[:1500])
    command = ("eval", "perplexity", "--model", smollm2_path, "--text", text, "--context", 128)
    done = strata(*command, "--json")
    found = json.loads(done.out)
    assert found["context"] == 128
    assert 5 < found["perplexity"] < 60
    assert found["perplexity"] == pytest.approx(math.exp(found["nll"]))
    shuffled = " ".join(sorted(jargon_text[:1500].split()))
    text.write_text(shuffled)
    assert json.loads(strata(*command, "--json").out)["perplexity"] > 3 * found["perplexity"]


def test_negative_log_likelihood():
    rows = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32)) + 1000
    found = negative_log_likelihood(rows.astype(np.float32), [0, 1])
    assert found == pytest.approx([-math.log(0.5), -math.log(0.8)], abs=1e-4)
    assert negative_log_likelihood(rows.astype(np.float32), [1, 1])[0] == pytest.approx(
        -math.log(0.25), abs=1e-4
    )


def test_benchmark(strata, smollm2_path):
    sizes = ("--prompt-len", 8, "--gen-len", 4, "--rounds", 2)
    done = strata("benchmark", "--model", smollm2_path, *sizes, "--json")
    found = json.loads(done.out)
    assert done.err.count("round ") == 2
    assert (found["prompt_len"], found["gen_len"], found["rounds"]) == (8, 4, 2)
    assert found["prompt_tps"] > 0 and found["generation_tps"] > 0
    assert 90e6 < found["weight_bytes_per_token"] < 98.4e6
    assert found["kv_bytes_per_token"] == 30 * 2 * 192 * 2 * (8 + 2)  # layers, k and v, width, f16, cells
    assert found["bytes_moved"] == 4 * (found["weight_bytes_per_token"] + found["kv_bytes_per_token"])
    share = found["generation_tps"] * found["bytes_moved"] / 4 / found["read_bandwidth"]
    assert found["bandwidth_share"] == pytest.approx(share)
    assert "tok/s" in strata("benchmark", "--model", smollm2_path, *sizes).out


def test_first_tokens_of_several_prompts(strata, smollm2_path):
    done = strata("benchmark", "--model", smollm2_path, "--prompts", "5,70", "--rounds", "1")
    assert [line.split(",")[1].split(" after")[0] for line in done.out.splitlines()] == [
        " first token of 5", " first token of 70",
    ]  # fmt: skip
    assert "first token" not in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--prompts", "5", "--fill-context", "9"), "--prompts and --fill-context are measured apart"),
        (("--windows", "1", "--prompts", "5"), "--windows and --prompts are measured apart"),
        (("--sustained", "1", "--json"), "--json is of the plain measurement, which --sustained replaces"),
    ],
)
def test_kinds_of_benchmark_that_exclude_each_other(refused, arguments, text):
    assert text in refused("benchmark", "--model", "x", *arguments, code=2)


def test_a_filled_context_as_short_as_may_be(strata):
    """Positions and tokens that are made up lie inside the model's tables, or steps would be void."""
    done = strata("benchmark", "--model", MINI, "--fill-context", 3, "--gen-len", 4, "--rounds", 1)
    assert "4 tokens after 3" in done.out and "share" in done.out


def test_void_steps_are_no_rate(refused, monkeypatch):
    monkeypatch.setattr(
        "strata.bench.probe._random", lambda buffer, g, most: np.full(buffer.shape, 1 << 14, np.int32)
    )
    message = refused(
        "benchmark", "--model", MINI, "--fill-context", 3, "--gen-len", 4, "--rounds", 1, code=1
    )
    assert "steps were void, so there is no rate" in message
