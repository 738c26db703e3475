"""What the serving measurements share: an engine, texts of token ids, and times of steps."""

import argparse
import statistics
import time

import numpy as np

from strata.config import EngineOptions, ServingOptions
from strata.engine import Engine, SamplingParams, Status


def arguments(description, only=()):
    """The parsed command line: model, threads, rounds; `only`: names of measurements to choose from."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default=".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    if only:
        parser.add_argument("--only", choices=only)
    return parser.parse_args()


def load(args, parallel=1, session_dir="", **serving):
    """An engine of 8K context."""
    options = EngineOptions(threads=args.threads, max_model_len=8192, max_num_seqs=parallel)
    return Engine.load(args.model, options, serving=ServingOptions(session_dir=str(session_dir), **serving))


def text(seed, count):
    """Token ids that no other seed begins with."""
    return np.random.default_rng(seed).integers(1000, 40000, count).tolist()


def sampling(count):
    """Greedy, to the length."""
    return SamplingParams(max_tokens=count, ignore_eos=True)


def finish(engine, requests):
    """Steps until all have ended; returns the seconds."""
    begin = time.perf_counter()
    while any(r.status is not Status.FINISHED for r in requests):
        engine.step()
    return time.perf_counter() - begin


def rate(engine, request, seconds):
    """Tokens a second of a decoding request over some time."""
    begin, first = time.perf_counter(), len(request.output_token_ids)
    while time.perf_counter() - begin < seconds and request.status is not Status.FINISHED:
        engine.step()
    return (len(request.output_token_ids) - first) / (time.perf_counter() - begin)


def started(engine, prompt, count):
    """A request that has given its first token."""
    request = engine.add(prompt, sampling(count))
    while not request.output_token_ids:
        engine.step()
    return request


def median(values):
    """The median, for tables."""
    return statistics.median(values)
