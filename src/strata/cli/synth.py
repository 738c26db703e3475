"""`strata synth`: made-up model files, for tests and for measuring."""

import os
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.synth import Geometry

synth_app = typer.Typer(help="Make up model files: planted, dense, tiny.", no_args_is_help=True)

Output = Annotated[Path, typer.Argument(metavar="OUT.gguf", help="File to write.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="Writers. [default: cores]")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of all random numbers.")]


def _count(name: str, text: str) -> Any:
    return typer.Option(name, metavar="N", help=text)


@synth_app.command()
def planted(
    output: Output,
    layers: Annotated[int, _count("--layers", "Layers, the draft layer not counted.")] = 48,
    experts: Annotated[int, _count("--experts", "Experts of a layer.")] = 512,
    used: Annotated[int, _count("--used", "Experts chosen for a token.")] = 10,
    hidden: Annotated[int, _count("--hidden", "Width of a residual stream.")] = 2560,
    ff: Annotated[int, _count("--ff", "Width of an expert.")] = 640,
    vocab: Annotated[int, _count("--vocab", "Tokens.")] = 248320,
    ctx: Annotated[int, _count("--ctx", "Context length in the metadata.")] = 262144,
    draft: Annotated[bool, typer.Option("--draft/--no-draft", help="Add a draft layer.")] = True,
    draft_noise: Annotated[
        float,
        typer.Option(metavar="X", help="Noise in what the draft layer reads: 0 makes every draft right."),
    ] = 1.0,
    gate: Annotated[str, typer.Option(metavar="TYPE", help="Type of experts' gate.")] = "IQ3_XXS",
    up: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type of experts' up. [default: --gate]")
    ] = None,
    down: Annotated[str, typer.Option(metavar="TYPE", help="Type of experts' down.")] = "Q2_0",
    dense: Annotated[str, typer.Option(metavar="TYPE", help="Type of attention and delta rule.")] = "Q6_K",
    shared: Annotated[str, typer.Option(metavar="TYPE", help="Type of the shared expert.")] = "Q8_0",
    mixer: Annotated[str, typer.Option(metavar="TYPE", help="Type of the stream mixers.")] = "BF16",
    embd: Annotated[str, typer.Option(metavar="TYPE", help="Type of the embedding.")] = "Q8_0",
    head: Annotated[str, typer.Option(metavar="TYPE", help="Type of the output matrix.")] = "Q8_0",
    table: Annotated[str, typer.Option(metavar="TYPE", help="Type of the n-gram table.")] = "IQ4_NL",
    topics: Annotated[int, _count("--topics", "Groups of tokens with like embeddings.")] = 64,
    run: Annotated[int, _count("--run", "Tokens of one topic in a row.")] = 200,
    noise: Annotated[
        float, typer.Option(metavar="X", help="A token's own part of its embedding, its topic's being 1.")
    ] = 1.0,
    router_std: Annotated[float, typer.Option(metavar="X", help="Deviation of router weights.")] = 0.06,
    gain: Annotated[
        str,
        typer.Option(
            metavar="X|half",
            help="Factor on what mixers and experts add; half: they carry half of the energy, so that "
            "leaving out one layer's part moves the logits by 5 % or more.",
        ),
    ] = "1",
    ngram_rows: Annotated[
        int | None,
        _count(
            "--ngram-rows",
            "Rows of the n-gram table, left as a hole (320001536: full size). [default: small]",
        ),
    ] = None,
    seed: Seed = 7,
    threads: Threads = None,
) -> None:
    """A full-geometry qwen4exp model that follows a known cycle of tokens, written beside it as .cycle.npy."""
    from strata.synth import FULL, PlantedOptions, ngram_base_for, write_planted

    geometry = replace(
        FULL,
        num_layers=layers,
        num_experts=experts,
        num_experts_per_tok=used,
        hidden_size=hidden,
        moe_intermediate_size=ff,
        shared_intermediate_size=ff,
        vocab_size=vocab,
        max_position=ctx,
        draft=draft,
    )
    if ngram_rows is not None:
        geometry = replace(geometry, ngram_base=ngram_base_for(ngram_rows, 2 * geometry.heads_per_ngram))
    options = PlantedOptions(
        geometry,
        types={
            "gate": gate.upper(),
            "up": (up or gate).upper(),
            "down": down.upper(),
            "dense": dense.upper(),
            "shared": shared.upper(),
            "mixer": mixer.upper(),
            "embd": embd.upper(),
            "head": head.upper(),
            "table": table.upper(),
        },
        topics=topics,
        noise=noise,
        run=run,
        gain=_gain(gain),
        router_std=router_std,
        draft_noise=draft_noise,
        sparse_table=ngram_rows is not None,
        seed=seed,
    )
    start = time.perf_counter()
    written = write_planted(output, options, _threads(threads))
    seconds = time.perf_counter() - start
    print(
        f"{output}: {written.nbytes / 1e9:.2f} GB ({written.filled / 1e9:.2f} GB filled), "
        f"{written.tensors} tensors, {seconds:.1f} s, {written.filled / 1e6 / seconds:.0f} MB/s"
    )


@synth_app.command()
def dense(
    output: Output,
    type_name: Annotated[str, typer.Option("--type", metavar="TYPE", help="Type of all matrices.")] = "Q4_K",
    layers: Annotated[int, _count("--layers", "Layers.")] = 32,
    hidden: Annotated[int, _count("--hidden", "Width of the residual.")] = 2560,
    ff: Annotated[int, _count("--ff", "Width of the feed-forward.")] = 6912,
    heads: Annotated[int, _count("--heads", "Query heads.")] = 20,
    kv_heads: Annotated[int, _count("--kv-heads", "Key heads.")] = 5,
    threads: Threads = None,
) -> None:
    """A random llama model of a given size and type, for speed only."""
    from strata.synth import DENSE, DenseOptions, write_dense

    if heads < 1 or hidden % heads:
        raise UsageError(f"--hidden {hidden} is not a multiple of --heads {heads}")
    geometry = replace(
        DENSE,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=ff,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        rotary_dim=hidden // heads,
    )
    nbytes = write_dense(output, DenseOptions(type_name.upper(), geometry), _threads(threads))
    print(f"{output}: {nbytes / 1e9:.2f} GB")


@synth_app.command()
def tiny(
    output: Output,
    arch: Annotated[
        str, typer.Option(metavar="ARCH", help="llama, qwen3moe, qwen35, qwen35moe, qwen3next or qwen4exp.")
    ] = "qwen4exp",
    sizes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=N", help="A size, such as num_layers=8; repeatable."),
    ] = None,
    type_name: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Type of matrices where rows fit; norms stay F32.")
    ] = "F32",
    planes: Annotated[
        list[str] | None,
        typer.Option(
            "--plane", metavar="PLANE=TYPE", help="Type of one plane, such as down=Q2_0; repeatable."
        ),
    ] = None,
    draft: Annotated[bool, typer.Option("--draft/--no-draft", help="Add a draft layer.")] = False,
    seed: Seed = 1,
) -> None:
    """A tiny random model of any family, small enough for a reference to run."""
    from strata import synth

    geometry = _with_sizes(replace(synth.tiny_geometry(arch), draft=draft), sizes or [])
    types = synth.uniform_types(type_name.upper())
    for item in planes or []:
        plane, _, name = item.partition("=")
        if plane not in synth.PLANES or not name:
            raise UsageError(f"--plane is {item!r}; planes are {', '.join(synth.PLANES)}")
        types[plane] = name.upper()
    synth.write_tiny(output, synth.TinyOptions(geometry, types, seed))
    print(f"{output}: {output.stat().st_size:,} bytes")


def _with_sizes(geometry: "Geometry", items: list[str]) -> "Geometry":
    known = {f.name: f.type for f in fields(geometry) if f.type in ("int", int)}
    found: dict[str, Any] = {}
    for item in items:
        name, _, value = item.partition("=")
        if name not in known or not value.isdigit():
            raise UsageError(f"--set is {item!r}; it must be NAME=N, NAME one of {', '.join(known)}")
        found[name] = int(value)
    return replace(geometry, **found)


def _gain(text: str) -> float | None:
    if text == "half":
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--gain is {text!r}; it must be a number or half") from None


def _threads(threads: int | None) -> int:
    if threads is not None and threads < 1:
        raise UsageError(f"--threads is {threads}; it must be at least 1")
    return threads or len(os.sched_getaffinity(0))
