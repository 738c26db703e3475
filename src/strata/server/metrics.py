"""Prometheus metrics, under the names other engines use."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """One registry a server, so that several may live in a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.running = Gauge("strata_num_requests_running", "Requests in the engine.", registry=r)
        self.prompt_tokens = Counter("strata_prompt_tokens", "Prompt tokens taken.", registry=r)
        self.generation_tokens = Counter("strata_generation_tokens", "Tokens generated.", registry=r)
        self.requests = Counter("strata_requests", "Requests ended.", ["finish_reason"], registry=r)
        self.first_token = Histogram(
            "strata_time_to_first_token_seconds", "Arrival to first text.", buckets=_SECONDS, registry=r
        )
        self.end_to_end = Histogram(
            "strata_e2e_request_latency_seconds", "Arrival to end.", buckets=_SECONDS, registry=r
        )

    def render(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)
