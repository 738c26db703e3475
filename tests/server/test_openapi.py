"""The server against its own OpenAPI document: whatever the document allows or forbids, no answer is out of it."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

MODES = schemathesis.GenerationMode
NUM_EXAMPLES = 5
SHORT = {"max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "n": 1}
PATHS = {
    ("get", "/health"),
    ("get", "/metrics"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model_id}"),
    ("post", "/v1/completions"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/embeddings"),
    ("post", "/v1/responses"),
    ("get", "/v1/responses/{response_id}"),
    ("delete", "/v1/responses/{response_id}"),
    ("get", "/v1/responses/{response_id}/input_items"),
    ("post", "/v1/messages"),
    ("post", "/v1/messages/count_tokens"),
}


@pytest.fixture(scope="module")
def api(thinker_server):
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{thinker_server.port}/openapi.json")


def shortened(case, mode):
    """Answers of a few tokens, where the body is a good one."""
    if mode is MODES.POSITIVE and isinstance(case.body, dict):
        case.body.update({k: v for k, v in SHORT.items() if k in case.body or k == "max_tokens"})
    return case


# Only a body can be wrong: any text will do as a name in a path.
CASES = [(*p, mode) for p in sorted(PATHS) for mode in MODES if p[0] == "post" or mode is MODES.POSITIVE]


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_every_answer_is_in_the_document(api, method, path, mode):
    operation = api[path][method.upper()]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        # a prompt too long, a grammar that is none: what a document cannot say may be refused
        shortened(case, mode).call_and_validate(excluded_checks=[positive_data_acceptance], timeout=20)

    check()


def test_the_document_has_every_endpoint(api):
    found = {(o.ok().method.lower(), o.ok().path) for o in api.get_all_operations()}
    assert found == PATHS


def test_a_planted_fault_is_seen(thinker_server, api, monkeypatch):
    monkeypatch.setattr(thinker_server.service, "room", lambda _: 1 // 0)
    case = api["/v1/completions"]["POST"].Case(body={"prompt": "a"})
    with pytest.raises(FailureGroup):
        case.call_and_validate(checks=[not_a_server_error])
