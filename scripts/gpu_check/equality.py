"""Stage 2: 8 planted layers have the CPU's logits hash: every KV type, every bucket, mixes of sequences."""

from typing import Any

import numpy as np

from gpu_check.common import Report, open_models, same_logits, say, synth
from strata.engine import Engine, SamplingParams


def run(report: Report) -> None:
    planted = synth("planted-8.gguf", "planted", "--layers", "8", "--gain", "half", "--no-draft")
    dense = synth("dense-4.gguf", "dense", "--type", "Q4_K", "--layers", "4")
    cycle = np.load(f"{planted}.cycle.npy").tolist()
    for kv in ("f16", "int8", "f32"):
        report[f"planted {kv}"] = same_logits(planted, cycle[:100], kv=kv, max_model_len=1024)
        say(f"planted, {kv}: {report[f'planted {kv}']}")
    report["dense"] = same_logits(dense, list(range(300, 700)), kv="int8", max_model_len=1024)
    say(f"dense: {report['dense']}")
    for name, path in (("planted", planted), ("dense", dense)):
        report[f"{name} buckets"] = _buckets(path)
        say(f"{name} buckets: {report[f'{name} buckets']}")


def _buckets(path: Any) -> dict[str, bool]:
    """The same sampled tokens and log-probabilities, whatever number of sequences shares a step."""
    found = {}
    for count in (1, 2, 3, 8, 16, 32):
        options: dict[str, Any] = {"max_num_seqs": count, "max_model_len": 256}
        outputs = []
        for loaded in open_models(path, **options):
            engine = Engine(loaded)
            requests = [
                engine.add(
                    [5 + i, 9, 11 + 3 * i],
                    SamplingParams(max_tokens=6, temperature=0.0 if i % 2 else 1.0, seed=i),
                )
                for i in range(count)
            ]
            while any(r.finish_reason is None for r in requests):
                engine.step()
            outputs.append([r.output_token_ids for r in requests])
        found[str(count)] = outputs[0] == outputs[1]
    return found
