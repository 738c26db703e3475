"""`strata benchmark`."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.options import (
    COMPUTE,
    DRAFTS,
    MEMORY,
    Json,
    Model,
    count,
    engine_options,
    parse_count,
    taking,
)
from strata.errors import UsageError

WARM_UP = 512  # cells of what is decoded before prompts are read

if TYPE_CHECKING:
    from strata.bench import Rate, SpeedReport


@taking(*COMPUTE, "prefill", *MEMORY, *DRAFTS, before="as_json")
def benchmark(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    prompt_len: Annotated[str, count("--prompt-len", "Tokens of the prompt.")] = "2048",
    gen_len: Annotated[str, count("--gen-len", "Tokens to generate.")] = "1024",
    rounds: Annotated[str, count("--rounds", "Rounds after the warm-up.")] = "3",
    fill_context: Annotated[
        str, count("--fill-context", "Read no prompt: decode after N pseudo-random cells of context.")
    ] = "0",
    sustained: Annotated[
        str, count("--sustained", "Read no prompt: decode N minutes, with the GPU's state.")
    ] = "0",
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Read no prompt: microseconds of every node of a step (GPU).")
    ] = False,
    windows: Annotated[
        str,
        count(
            "--windows",
            "Read no prompt: decode windows of a planted cycle, N rounds to warm up and one that counts (GPU).",
        ),
    ] = "0",
    prompts: Annotated[
        str, typer.Option("--prompts", metavar="N,...", help="Only first tokens of prompts of these lengths.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Measure prompt and generation speed apart: a warm-up, then the median of some rounds."""
    lengths = parse_count("--prompt-len", prompt_len), parse_count("--gen-len", gen_len, 2)
    num_rounds = parse_count("--rounds", rounds)
    cells, minutes = parse_count("--fill-context", fill_context, 0), parse_count("--sustained", sustained, 0)
    warm_up = parse_count("--windows", windows, 0)
    decoding = {"--fill-context": cells, "--sustained": minutes, "--timeline": timeline and not prompts}
    _check_kind({"--windows": warm_up, "--prompts": prompts}, decoding, as_json)
    if warm_up:
        from strata.cli.decode_speed import windows_benchmark

        options = engine_options(context.params, max_model_len="1024")
        print("\n".join(windows_benchmark(model, options, warm_up)))
        return
    if prompts:
        from strata.cli.prompt_speed import lengths_of, prompt_benchmark

        found = lengths_of(prompts)
        options = engine_options(context.params, max_model_len=str(max(found) + WARM_UP))
        for line in prompt_benchmark(model, options, found, num_rounds, timeline):
            print(line, flush=True)
        return
    if cells or minutes or timeline:
        from strata.cli.decode_speed import decode_benchmark

        options = engine_options(context.params, max_model_len=str(cells + lengths[1]))
        print("\n".join(decode_benchmark(model, options, cells, lengths[1], num_rounds, minutes, timeline)))
        return
    options = engine_options(context.params, max_model_len=str(sum(lengths)))

    from strata import hw
    from strata.bench import Workload, measure_speed
    from strata.cli.progress import ReadProgress
    from strata.engine import Engine

    engine = Engine.load(model, options, progress=ReadProgress())
    bandwidth = hw.measure_read_bandwidth(options.threads)
    report = measure_speed(
        engine, Workload(*lengths, num_rounds), bandwidth, lambda line: print(line, file=sys.stderr)
    )
    print(json.dumps(_json(report)) if as_json else "\n".join(_lines(report)))


def _check_kind(alone: Mapping[str, object], decoding: Mapping[str, object], as_json: bool) -> None:
    """UsageError for kinds of measurement that exclude each other. What is said of decoding goes together."""
    single, together = ([name for name, value in kind.items() if value] for kind in (alone, decoding))
    if len(single) + bool(together) > 1:
        raise UsageError(f"{' and '.join(single + together)} are measured apart")
    if as_json and single + together:
        raise UsageError(f"--json is of the plain measurement, which {(single + together)[0]} replaces")


def _json(report: "SpeedReport") -> dict[str, float]:
    return {
        "prompt_tps": report.prompt.median,
        "prompt_tps_spread": report.prompt.spread,
        "generation_tps": report.generation.median,
        "generation_tps_spread": report.generation.spread,
        "prompt_len": report.workload.prompt_len,
        "gen_len": report.workload.gen_len,
        "rounds": report.workload.rounds,
        "weight_bytes_per_token": report.weight_bytes_per_token,
        "kv_bytes_per_token": report.kv_bytes_per_token,
        "bytes_moved": report.bytes_per_token * report.workload.gen_len,
        "read_bandwidth": report.read_bandwidth,
        "bandwidth_share": report.bandwidth_share,
    }


def _lines(report: "SpeedReport") -> list[str]:
    work = report.workload
    megabytes = [
        n / 1e6 for n in (report.bytes_per_token, report.weight_bytes_per_token, report.kv_bytes_per_token)
    ]
    share = f"generation uses {report.bandwidth_share:.1%} of it"
    return [
        f"prompt      {_speed(report.prompt)} ({work.prompt_len} tokens)",
        f"generation  {_speed(report.generation)} ({work.gen_len} tokens)",
        f"bytes moved {megabytes[0]:9.1f} MB per generated token ({megabytes[1]:.1f} weights, {megabytes[2]:.1f} KV)",
        f"RAM read    {report.read_bandwidth / 1e9:9.1f} GB/s measured; {share}",
    ]


def _speed(rate: "Rate") -> str:
    return f"{rate.median:9.1f} tok/s, spread {rate.spread:.1%}"
