"""Stage 2: 8 planted layers have the CPU's logits hash: every KV type, every bucket, mixes of sequences."""

from pathlib import Path

import numpy as np

from gpu_check.common import Report, load_cpu, on_gpu, same_logits, say
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from strata.engine import Engine, SamplingParams
from strata.engine.load import LoadedModel


def run(report: Report) -> None:
    planted, dense = model_file("planted-8.gguf"), model_file("dense-4.gguf")
    cycle = np.load(f"{planted}.cycle.npy").tolist()
    for kv in ("f16", "int8", "f32"):
        report[f"planted {kv}"] = same_logits(planted, cycle[: sized(100, 4)], kv=kv, max_model_len=1024)
        say(f"planted, {kv}: {report[f'planted {kv}']}")
    report["dense"] = same_logits(dense, list(range(300, sized(700, 304))), kv="int8", max_model_len=1024)
    say(f"dense: {report['dense']}")
    for name, path in (("planted", planted), ("dense", dense)):
        report[f"{name} buckets"] = _buckets(path)
        say(f"{name} buckets: {report[f'{name} buckets']}")


def _buckets(path: Path) -> dict[str, bool]:
    """The same sampled tokens, whatever number of sequences shares a step."""
    counts = sized((1, 2, 3, 8, 16, 32), (3, 16))
    options = {"max_num_seqs": counts[-1], "max_model_len": 256}
    loaded = load_cpu(path, **options)
    wanted = [_sampled(loaded, count) for count in counts]
    with on_gpu(path, **options) as loaded:
        return {str(c): _sampled(loaded, c) == w for c, w in zip(counts, wanted, strict=True)}


def _sampled(loaded: LoadedModel, count: int) -> list[list[int]]:
    engine = Engine(loaded)
    requests = [
        engine.add(
            [5 + i, 9, 11 + 3 * i], SamplingParams(max_tokens=6, temperature=0.0 if i % 2 else 1.0, seed=i)
        )
        for i in range(count)
    ]
    while any(r.finish_reason is None for r in requests):
        engine.step()
    return [r.output_token_ids for r in requests]
