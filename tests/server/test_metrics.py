"""Metrics under the names that dashboards know, and a line a request."""

import json
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families
from requests_over import TEXT, ask, idle, post

from strata import log

NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
}


def samples(server):
    text = ask(server, "GET", "/metrics")[2].decode()
    families = list(text_string_to_metric_families(text))
    return {f.name for f in families}, {
        (s.name, s.labels.get("finished_reason")): s.value
        for f in families
        for s in f.samples
        if "le" not in s.labels
    }


@pytest.fixture
def lines():
    """Log records of requests, as they come."""
    found = []

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(record)

    handler, logger = Keep(), logging.getLogger("strata.requests")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_names_and_counts(tiny_server):
    names, before = samples(tiny_server)
    assert names >= NAMES
    prompt = [5] * 130
    for _ in range(2):
        post(tiny_server, TEXT, {"prompt": prompt, "max_tokens": 10, "ignore_eos": True})
        assert idle(tiny_server)
    _, after = samples(tiny_server)

    def grown(name, reason=None):
        return after[name, reason] - before.get((name, reason), 0)

    assert grown("vllm:prompt_tokens_total") == 260
    assert grown("vllm:generation_tokens_total") == 20
    assert grown("vllm:prefix_cache_queries_total") == 260
    assert grown("vllm:prefix_cache_hits_total") == 128, "the second prompt was read but for its last tokens"
    assert grown("vllm:request_success_total", "length") == 2
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:inter_token_latency_seconds_count") == 18
    assert grown("vllm:e2e_request_latency_seconds_count") == 2
    assert after["vllm:num_requests_running", None] == 0


def test_a_line_a_request_for_people(tiny_server, lines):
    post(tiny_server, TEXT, {"prompt": [9] * 70, "max_tokens": 3, "ignore_eos": True, "n": 2})
    post(tiny_server, TEXT, {"prompt": [9], "max_tokens": 3}, {"Host": "evil"})
    answered, refused = [record.getMessage() for record in lines]
    assert answered.startswith("/v1/completions cmpl-")
    assert "70 prompt tokens" in answered and "6 generated in 2 answers" in answered
    assert answered.endswith("length")
    assert refused.startswith("/v1/completions 403: host 'evil'")


def test_the_same_as_json(tiny_server, lines, monkeypatch):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger("strata"), "handlers", [handler])
    log.use_json()
    post(tiny_server, TEXT, {"prompt": [9] * 70, "max_tokens": 3, "ignore_eos": True})
    entry = json.loads(handler.format(lines[0]))
    assert entry["path"] == TEXT and entry["generated_tokens"] == 3 and entry["level"] == "info"
    try:
        raise ValueError("broken")
    except ValueError:
        record = logging.getLogger("strata.x").makeRecord(
            "strata.x", 40, "", 1, "m\n%s", ("a",), __import__("sys").exc_info()
        )
    entry = json.loads(handler.format(record))
    assert entry["message"] == "m\na" and "ValueError: broken" in entry["traceback"]
