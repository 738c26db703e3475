"""A run to the end of the context in a process of its own; prints its high-water mark and its plan, as JSON."""

import contextlib
import json
import re
import sys
from pathlib import Path

import strata.server.app  # noqa: F401  (what a server loads counts)
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.errors import StrataError
from strata.memory.plan_text import to_json
from strata.text import Tokenizer


def main(path: str, settings: dict[str, object], draft: bool) -> None:
    engine = Engine.load(path, EngineOptions(**settings), path if draft else None)
    with contextlib.suppress(StrataError):
        Tokenizer.from_metadata(engine.model_file.metadata).encode("hello")
    vocab, room = engine.model_config.vocab_size, engine.max_model_len - 8
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    prompts = [[(7 * i + s) % vocab for i in range(room)] for s in range(engine.placement.choice.sequences)]
    requests = [engine.add(p, params) for p in prompts]
    while any(r.finish_reason is None for r in requests):
        engine.step()
    print(json.dumps({"mark": high_water(), "plan": to_json(engine.placement)["tiers"]["ram"]}))


def high_water() -> int:
    """Bytes that were resident at once; getrusage would count what the parent had when it forked."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "draft")
