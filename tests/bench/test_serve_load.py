"""The load client against servers whose times and faults are known."""

import http.server
import json
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from strata.bench.serve import Load, PromptMaker, Report, Sample, Target, compare, plot, run_load
from strata.cli import main
from strata.errors import UsageError

TOKENS_A_WORD, FIXED_TOKENS = 2, 7


class Scripted(http.server.BaseHTTPRequestHandler):
    """Counts a word as two tokens and seven around them; `faults`: what goes wrong with every nth request."""

    def do_GET(self):
        self._whole(200, {"data": [{"id": "some-model"}]})

    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.seen.append((time.perf_counter(), dict(self.headers), body))
            number = len(server.seen)
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        try:
            self._answer(server.fault(number, body), body)
        finally:
            with server.lock:
                server.open -= 1

    def _answer(self, fault, body):
        if fault == "refused":
            return self._whole(400, {"error": {"message": "no such thing"}})
        self.send_response(200)
        self.end_headers()
        time.sleep(self.server.first)
        for i in range(body["max_tokens"]):
            if fault == "broken" and i == 1:
                return None
            if fault == "error":
                return self._event({"error": {"message": "fault inside"}})
            self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            self._event({"choices": [{"index": 0, "text": "x", "delta": {"content": "x"}}]})
            time.sleep(self.server.each)
        text = body.get("prompt") or body["messages"][0]["content"]
        if self.server.usage:
            prompt = len(text.split()) * TOKENS_A_WORD + FIXED_TOKENS
            self._event(
                {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}}
            )
        self.wfile.write(b": sign of life\n\ndata: [DONE]\n\n")
        return None

    def _event(self, chunk):
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _whole(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def scripted():
    """`scripted(fault=..., usage=True, first=0, each=0)`: a server until the test ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.daemon_threads = True
    server.lock, server.seen, server.open, server.most_open = threading.Lock(), [], 0, 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()

    def start(fault=lambda number, body: None, usage=True, first=0.0, each=0.0):
        server.fault, server.usage, server.first, server.each = fault, usage, first, each
        return SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", server=server)

    yield start
    server.shutdown()
    server.server_close()
    thread.join(10)


def sample(begun, pieces, ended, tokens=None, prompt=10):
    return Sample(begun, list(pieces), ended, prompt, tokens)


def test_figures_of_known_moments():
    # two answers of 5 and 3 tokens: 1 s to the first; the second's pieces carry two tokens each after the first
    report = Report(
        [sample(0, [1, 2, 3, 4, 5], 6, 5), sample(2, [3, 9], 10, 3), Sample(3, ended=4, error="x")]
    )
    figures = report.figures()
    assert (figures["requests"], figures["failed"], figures["wall_s"]) == (3, 1, 10)
    assert figures["aggregate_tps"] == 0.8, "8 tokens in 10 s"
    assert report.decode_seconds == 8, "from 1 to 9, the overlap once"
    assert figures["decode_share"] == 0.8 and figures["decode_tps"] == 0.75
    assert figures["ttft_s"]["mean"] == 1 and figures["tpot_s"]["max"] == 3 and figures["itl_s"]["max"] == 6
    assert (
        figures["e2e_s"]["p99"] == 8 and figures["counted_by"] == "usage" and figures["prompt_tokens"] == 20
    )


def test_decode_time_is_counted_once_and_not_in_pauses():
    report = Report([sample(0, [1, 2], 2, 2), sample(0, [1.5, 1.75], 2, 2), sample(5, [7, 8], 8, 2)])
    assert report.decode_seconds == 2


def test_windows_show_a_server_that_slows_down():
    samples = [sample(i, [i + 0.1, i + 0.2], i + 0.3, 2) for i in range(50)]
    samples += [sample(i, [i + 0.1, i + 0.9], i + 0.95, 2) for i in range(50, 100)]
    windows = Report(samples).windows()
    assert sum(w["requests"] for w in windows) == 100
    assert windows[0]["tpot_p50_s"] == pytest.approx(0.1) and windows[-1]["tpot_p50_s"] == pytest.approx(0.8)
    assert sum(w["output_tps"] for w in windows) * Report(samples).wall / 10 == pytest.approx(200, rel=0.01)


def test_what_is_sent(scripted):
    found = scripted()
    target = Target(f"{found.url}/v1/", key="a key")
    run_load(target, target.model(), Load(1, 1, 30, 4, extra={"top_k": 5}), PromptMaker.fitted(target, "m"))
    _, headers, body = found.server.seen[-1]
    assert headers["Authorization"] == "Bearer a key"
    assert len(body["messages"][0]["content"].split()) * TOKENS_A_WORD + FIXED_TOKENS == pytest.approx(
        30, abs=1
    )
    del body["messages"]
    assert body == {
        "model": "some-model", "max_tokens": 4, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "top_k": 5,
    }  # fmt: skip


def test_streams_at_once_and_prompts_that_differ(scripted):
    found = scripted(each=0.01)
    target = Target(found.url, api="completions")
    samples = run_load(target, "m", Load(4, 12, 20, 3), PromptMaker())
    assert len(samples) == 12 and not any(s.error for s in samples)
    assert found.server.most_open == 4
    assert len({body["prompt"] for *_, body in found.server.seen}) == 12


def test_times_are_those_of_the_server(scripted):
    """Bounds that hold however busy the machine is: nothing comes before it was sent."""
    target = Target(scripted(first=0.1, each=0.02).url)
    (one,) = run_load(target, "m", Load(1, 1, 20, 5), PromptMaker())
    assert one.ttft == one.pieces[0] - one.begun and len(one.gaps) == 4
    assert all(at - one.begun >= 0.1 + 0.02 * i for i, at in enumerate(one.pieces))
    assert one.tokens == 5, "empty deltas and comments are no pieces"


def test_without_usage_pieces_count(scripted):
    target = Target(scripted(usage=False).url)
    report = Report(run_load(target, "m", Load(1, 2, 20, 5), PromptMaker.fitted(target, "m")))
    assert report.figures()["output_tokens"] == 10
    assert report.figures()["counted_by"] == "pieces" and report.figures()["prompt_tokens"] is None


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("refused", "400: no such thing"),
        ("broken", "the stream ended before [DONE]"),
        ("error", "fault inside"),
    ],
)
def test_failures_are_counted_and_named(scripted, fault, text):
    told = []
    target = Target(scripted(lambda number, body: fault if number == 2 else None).url)
    report = Report(run_load(target, "m", Load(1, 3, 20, 3), PromptMaker(), told.append))
    assert report.figures()["failed"] == 1 and told == [f"request 2: {text}"]


def test_arrivals():
    even = list(Load(0, 4, arrival="rate", rate=2).arrivals())
    assert even == [0, 0.5, 1, 1.5]
    chance = list(Load(0, 4000, arrival="poisson", rate=10, seed=3).arrivals())
    gaps = [b - a for a, b in pairwise(chance)]
    mean = sum(gaps) / len(gaps)
    variance = sum((g - mean) ** 2 for g in gaps) / len(gaps)
    assert mean == pytest.approx(0.1, rel=0.05) and variance == pytest.approx(mean**2, rel=0.1)
    assert chance == list(Load(0, 4000, arrival="poisson", rate=10, seed=3).arrivals())
    assert max(Load(0, 0, arrival="rate", rate=10, seconds=1).arrivals()) < 1


def test_requests_are_sent_at_their_times(scripted):
    found = scripted(first=1.0)
    begun = time.perf_counter()
    samples = run_load(Target(found.url), "m", Load(0, 4, 20, 2, "rate", 20), PromptMaker())
    assert all(s.begun - begun >= 0.05 * i for i, s in enumerate(samples))
    assert found.server.most_open > 1, "they do not wait for one another"


def test_a_soak_ends_with_its_time(scripted):
    """Every stream looks at the clock before it asks, so that two more at most begin after the time."""
    begun = time.perf_counter()
    samples = run_load(Target(scripted(each=0.02).url), "m", Load(2, 0, 20, 3, seconds=2), PromptMaker())
    assert len(samples) > 2 and sum(s.begun - begun > 2 for s in samples) <= 2


def figures(ttft, tpot, rate=10):
    return {"ttft_s": {"p50": ttft}, "tpot_s": {"p50": tpot}, "aggregate_tps": rate}


def test_break_even():
    found = compare(figures(2.0, 0.01, 20), figures(1.0, 0.02))
    assert found.break_even == 101 and found.ahead == "this", "2 + 100 * 0.01 = 1 + 100 * 0.02"
    assert (found.ttft, found.tpot, found.aggregate_tps) == (2, 0.5, 2)
    never = compare(figures(1.0, 0.01), figures(2.0, 0.02))
    assert never.break_even is None and never.ahead == "this"
    assert compare(figures(1.0, 0.02), figures(2.0, 0.02)).ahead == "neither"
    with pytest.raises(UsageError, match="no medians"):
        compare(figures(1, 1), {"ttft_s": {}})


def test_the_plot_is_well_formed_and_to_scale():
    timeline = [{"sent": 0.0, "first": 1.0, "end": 4.0}, {"sent": 2.0, "first": 3.0, "end": 8.0}]
    windows = [{"until_s": 4.0, "output_tps": 5.0}, {"until_s": 8.0, "output_tps": 10.0}]
    root = ElementTree.fromstring(plot("<model> & more", timeline, windows))
    boxes = [b.attrib for b in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    widths = [float(b["width"]) for b in boxes[:4]]
    assert [w / widths[0] for w in widths] == pytest.approx([1, 3, 1, 5], rel=0.01)
    assert float(boxes[5]["height"]) == pytest.approx(2 * float(boxes[4]["height"]))
    assert "<model> & more" in [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "serve", *arguments])
    return ended.value.code, *capsys.readouterr()


def test_the_command(scripted, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("STRATA_API_KEY", raising=False)
    report, drawn = tmp_path / "run.json", tmp_path / "run.svg"
    url = scripted(each=0.005).url
    more = ("--concurrency", "2", "--requests", "4", "--prompt-len", "40", "--output-len", "4")
    code, out, _ = run(capsys, "--url", url, *more, "-o", str(report), "--plot", str(drawn))
    assert code in (0, None) and "4, 0 failed" in out and "aggregate" in out
    assert json.loads(report.read_text())["figures"]["output_tokens"] == 16
    ElementTree.parse(drawn)
    code, out, _ = run(capsys, "--url", url, *more, "--against", str(report), "--json")
    assert json.loads(out)["against"]["ttft_ratio"] > 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--url", "nothing"), "--url is nothing; it must be like"),
        (("--url", "http://127.0.0.1:9"), "cannot be asked"),
        (("--url", "http://h", "--api", "chatt"), "--api is chatt; it must be one of chat, completions"),
        (("--url", "http://h", "--arrival", "rate"), "a rate belongs to rate and poisson alone"),
        (("--url", "http://h", "--rate", "2"), "a rate belongs to rate and poisson alone"),
        (("--url", "http://h", "--concurrency", "0"), "without a rate it must be at least 1"),
        (("--url", "http://h", "--extra", "[1]"), "--extra is no JSON object"),
        (("--url", "http://h", "--extra", "{"), "--extra is not JSON"),
        (("--url", "http://h", "--prompt-len", "0"), "--prompt-len is 0"),
        (("--url", "http://h", "--against", "/nowhere.json"), "/nowhere.json"),
    ],
)
def test_wrong_arguments_are_one_line(capsys, arguments, text):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == "" and text in err and err.count("\n") == 1


def test_every_request_failing_is_an_error(scripted, capsys):
    url = scripted(lambda number, body: "refused" if body["max_tokens"] > 1 else None).url
    code, _, err = run(capsys, "--url", url, "--concurrency", "1")
    assert code == 2 and "no request came to its end: 400: no such thing" in err
