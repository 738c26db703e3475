"""An engine whose logits are recorded: a hash for each position of each request's answer."""

import hashlib

import numpy as np

from strata.config import EngineOptions, ServingOptions
from strata.engine import Engine, SamplingParams, Status

HOT = {"temperature": 1.5}


class Recorded:
    """An engine, and the SHA-256 of every float32 logits row that a token was sampled from."""

    def __init__(self, path, serving=None, **options):
        settings = {"backend": "cpu", "threads": 2, "max_model_len": 512, "max_num_seqs": 4, "prefill": 128}
        self.engine = Engine.load(
            path, EngineOptions(**{**settings, **options}), serving=serving or ServingOptions()
        )
        self.rows = {}
        self.engine._runner.watch = self._watch

    def _watch(self, sequences, positions, logits):
        owners = {r.sequence: r for r in self.engine.scheduler.running}
        for sequence, position, row in zip(sequences.tolist(), positions.tolist(), logits, strict=True):
            digest = hashlib.sha256(np.ascontiguousarray(row, np.float32).tobytes()).hexdigest()
            self.rows.setdefault(owners[sequence].request_id, {})[position] = digest

    def add(self, tokens, count=12, seed=0, **more):
        return self.engine.add(tokens, SamplingParams(max_tokens=count, seed=seed, **HOT), **more)

    def finish(self, *requests, between=lambda: None):
        """Steps until all have ended; returns each one's hash over its answer's rows."""
        while any(r.status is not Status.FINISHED for r in requests):
            between()
            self.engine.step()
        return [self.digest(r) for r in requests]

    def run(self, tokens, count=12, seed=0, **more):
        """One request alone: (hash, tokens, the request)."""
        request = self.add(tokens, count, seed, **more)
        return self.finish(request)[0], request.output_token_ids, request

    def digest(self, request):
        rows = self.rows[request.request_id]
        first = len(request.prompt_token_ids) - 1
        wanted = range(first, first + len(request.output_token_ids))
        return hashlib.sha256("".join(rows[p] for p in wanted).encode()).hexdigest()
