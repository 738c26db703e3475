"""Prometheus metrics. Those that vLLM has too carry its names, so that dashboards, routers and autoscalers made for it
work here (docs.vllm.ai, "Production Metrics"); our own begin with strata_."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from strata.server.generation import Generation

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_GAPS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
# Their word for each of ours.
_REASONS = {"tool_calls": "stop", "error": "abort"}


class Metrics:
    """One registry a server, so that several may live in a process."""

    def __init__(self, model_id: str) -> None:
        self.registry = CollectorRegistry()
        self._model = self.model_id = model_id
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens read or reused.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.cache_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up for reuse.")
        self.cache_hits = self._counter("prefix_cache_hits", "Prompt tokens reused.")
        self.requests = Counter(
            "vllm:request_success",
            "Requests ended.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self.refused = Counter(
            "strata_requests_refused", "Requests not served.", ["status"], registry=self.registry
        )
        usage = Gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the KV pages in use.",
            ["model_name"],
            registry=self.registry,
        )
        self.kv_usage = usage.labels(model_id)
        self.first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _SECONDS)
        self.gap = self._histogram("inter_token_latency_seconds", "Between two tokens.", _GAPS)
        self.per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean after the first.", _GAPS
        )
        self.end_to_end = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _LONG)
        self.queue = self._histogram("request_queue_time_seconds", "In the queue.", _LONG)
        self.prefill = self._histogram("request_prefill_time_seconds", "Start to first token.", _LONG)
        self.decode = self._histogram("request_decode_time_seconds", "First token to end.", _LONG)
        self.prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens a request.", _TOKENS)
        self.answer_length = self._histogram(
            "request_generation_tokens", "Generated tokens a request.", _TOKENS
        )

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """A value under vLLM's name and label, read when somebody asks."""
        made = Gauge(f"vllm:{name}", help, ["model_name"], registry=self.registry)
        made.labels(self._model).set_function(read)

    def own(self, name: str, help: str, parts: Mapping[str, Callable[[], float]], label: str = "") -> None:
        """Values under a name of ours, one for each value of the label; without a label, one."""
        made = Gauge(f"strata_{name}", help, [label] if label else [], registry=self.registry)
        for part, read in parts.items():
            (made.labels(part) if label else made).set_function(read)

    def count(self, generation: Generation) -> None:
        """An answer that has ended, whatever its end."""
        g, t = generation, generation.timings
        self.requests.labels(self._model, _REASONS.get(g.finish_reason, g.finish_reason)).inc()
        self.end_to_end.observe(t.finished - t.arrived)
        self.generation_tokens.inc(g.reader.num_tokens)
        self.answer_length.observe(g.reader.num_tokens)
        self.prompt_length.observe(g.num_prompt_tokens)
        if not t.first_token:
            return
        self.prompt_tokens.inc(g.num_prompt_tokens)
        self.cache_queries.inc(g.num_prompt_tokens)
        self.cache_hits.inc(g.num_cached_tokens)
        self.first_token.observe(t.first_token - t.arrived)
        self.queue.observe(t.queue_seconds)
        self.prefill.observe(t.prompt_seconds)
        self.decode.observe(t.generation_seconds)
        if g.reader.num_tokens > 1:
            self.per_token.observe(t.generation_seconds / (g.reader.num_tokens - 1))

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(f"vllm:{name}", help, ["model_name"], registry=self.registry).labels(self._model)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"vllm:{name}", help, ["model_name"], buckets=buckets, registry=self.registry)
        return made.labels(self._model)
