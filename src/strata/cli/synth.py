"""`strata synth`: made-up model files, for tests and for measuring."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.synth import Geometry, PlantedOptions

synth_app = typer.Typer(help="Make up model files: planted, dense, tiny.")

Output = Annotated[Path, typer.Argument(metavar="OUT.gguf", help="File to write.")]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="Writers. [default: cores]")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of all random numbers.")]


def _count(name: str, text: str) -> Any:
    return typer.Option(name, metavar="N", help=text)


def _type(name: str, text: str) -> Any:
    return typer.Option(name, metavar="TYPE", help=f"Type of {text}.")


def _number(name: str, text: str) -> Any:
    return typer.Option(name, metavar="X", help=text)


Layers = Annotated[int, _count("--layers", "Layers, the draft layer not counted.")]
Draft = Annotated[bool, typer.Option("--draft/--no-draft", help="Add a draft layer.")]
DraftNoise = Annotated[
    float, _number("--draft-noise", "Noise in what the draft layer reads: at 0 every draft is right.")
]
DraftAgreement = Annotated[
    float | None,
    _number("--draft-agreement", "Chance from 0 to 1 that a draft is right, in the place of --draft-noise."),
]
Run = Annotated[int, _count("--run", "Tokens of one topic in a row.")]
Noise = Annotated[float, _number("--noise", "A token's own part of its embedding, its topic's being 1.")]
Gain = Annotated[
    str,
    typer.Option(
        "--gain",
        metavar="X|half",
        help="Factor on what mixers and experts add; half: they carry half of the energy, so that leaving out "
        "one layer's part moves the logits by 5 % or more.",
    ),
]
NgramRows = Annotated[
    int | None,
    _count(
        "--ngram-rows", "Rows of the n-gram table, left as a hole (320001536: full size). [default: small]"
    ),
]


@synth_app.command()
def planted(
    output: Output,
    layers: Layers = 48,
    experts: Annotated[int, _count("--experts", "Experts of a layer.")] = 512,
    used: Annotated[int, _count("--used", "Experts chosen for a token.")] = 10,
    hidden: Annotated[int, _count("--hidden", "Width of a residual stream.")] = 2560,
    ff: Annotated[int, _count("--ff", "Width of an expert.")] = 640,
    vocab: Annotated[int, _count("--vocab", "Tokens.")] = 248320,
    ctx: Annotated[int, _count("--ctx", "Context length in the metadata.")] = 262144,
    draft: Draft = True,
    draft_noise: DraftNoise = 1.0,
    draft_agreement: DraftAgreement = None,
    gate: Annotated[str, _type("--gate", "experts' gate")] = "IQ3_XXS",
    up: Annotated[str | None, _type("--up", "experts' up [default: --gate]")] = None,
    down: Annotated[str, _type("--down", "experts' down")] = "Q2_0",
    dense: Annotated[str, _type("--dense", "attention and delta rule")] = "Q6_K",
    shared: Annotated[str, _type("--shared", "the shared expert")] = "Q8_0",
    mixer: Annotated[str, _type("--mixer", "the stream mixers")] = "BF16",
    embd: Annotated[str, _type("--embd", "the embedding")] = "Q8_0",
    head: Annotated[str, _type("--head", "the output matrix")] = "Q8_0",
    table: Annotated[str, _type("--table", "the n-gram table")] = "IQ4_NL",
    topics: Annotated[int, _count("--topics", "Groups of tokens with like embeddings.")] = 64,
    run: Run = 200,
    noise: Noise = 1.0,
    router_std: Annotated[float, _number("--router-std", "Deviation of router weights.")] = 0.06,
    gain: Gain = "1",
    ngram_rows: NgramRows = None,
    seed: Seed = 7,
    threads: Threads = None,
) -> None:
    """A full-geometry qwen4exp model that follows a known cycle of tokens, written beside it as .cycle.npy."""
    from strata.synth import FULL, PlantedOptions

    counts: dict[str, Any] = {
        "num_layers": layers,
        "num_experts": experts,
        "num_experts_per_tok": used,
        "vocab_size": vocab,
    }
    widths: dict[str, Any] = {
        "hidden_size": hidden,
        "moe_intermediate_size": ff,
        "shared_intermediate_size": ff,
    }
    types = {"gate": gate, "up": up or gate, "down": down, "dense": dense, "shared": shared}
    types |= {"mixer": mixer, "embd": embd, "head": head, "table": table}
    options = PlantedOptions(
        _with_table(replace(FULL, max_position=ctx, draft=draft, **counts, **widths), ngram_rows),
        types={plane: name.upper() for plane, name in types.items()},
        topics=topics,
        noise=noise,
        run=run,
        gain=_gain(gain),
        router_std=router_std,
        draft_noise=draft_noise,
        draft_agreement=draft_agreement,
        sparse_table=ngram_rows is not None,
        seed=seed,
    )
    _write_planted(output, options, _threads(threads))


def _with_table(geometry: "Geometry", rows: int | None) -> "Geometry":
    from strata.synth import ngram_base_for

    if rows is None:
        return geometry
    return replace(geometry, ngram_base=ngram_base_for(rows, 2 * geometry.heads_per_ngram))


def _write_planted(output: Path, options: "PlantedOptions", threads: int) -> None:
    from strata.synth import write_planted

    start = time.perf_counter()
    written = write_planted(output, options, threads)
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
        str,
        typer.Option(metavar="ARCH", help="llama, qwen3, qwen3moe, qwen35, qwen35moe, qwen3next, qwen4exp."),
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
    """A tiny random model of one of these architectures, small enough for a reference to run."""
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
    from strata.synth import SIZES

    found: dict[str, Any] = {}
    for item in items:
        name, _, value = item.partition("=")
        if name not in SIZES or not value.isdigit():
            raise UsageError(f"--set is {item!r}; it must be NAME=N, NAME one of {', '.join(SIZES)}")
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
