"""`strata convert`: a checkpoint in safetensors as a GGUF file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.convert import Conversion

ONLY = ("mtp",)


def convert(
    directory: Annotated[
        Path, typer.Argument(metavar="HF_DIR", help="Checkpoint: config.json, safetensors, tokenizer.json.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="GGUF file to write.")],
    type_name: Annotated[
        str,
        typer.Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q2_0, Q4_K, Q6_K or IQ3_XXS. Norms, router, "
            "convolutions and gates stay F32, the indexer BF16; rows that blocks do not fill fall back.",
        ),
    ] = "Q8_0",
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="PART", help="mtp: only the draft layer, which borrows embedding and head."
        ),
    ] = None,
    tensor_types: Annotated[
        list[str] | None,
        typer.Option(
            "--tensor-type",
            metavar="PATTERN=TYPE",
            help="Another type for tensors of these names, such as '*ffn_down_exps*=Q2_0'; the first that fits counts.",
        ),
    ] = None,
    activations: Annotated[
        Path | None,
        typer.Option(
            "--activations",
            metavar="FILE.npz",
            help="Mean squares of what products read, by tensor name: encoders weigh errors by them.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Encoders. [default: cores]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """A Hugging Face checkpoint to GGUF: qwen4exp, qwen35moe, qwen35, qwen3next, qwen3moe, qwen3, qwen2, llama."""
    if only is not None and only not in ONLY:
        raise UsageError(f"--only is {only!r}; it must be one of {', '.join(ONLY)}")
    if threads is not None and threads < 1:
        raise UsageError(f"--threads is {threads}; it must be at least 1")
    from strata.convert import plan_conversion

    plan = plan_conversion(directory, type_name, only == "mtp", tensor_types or (), activations)
    if not as_json:
        print("\n".join(describe(plan)))
    plan.write(output, threads)
    found: dict[str, Any] = {
        "file": str(output),
        "arch": plan.arch,
        "tensors": len(plan.tensors),
        "bytes": plan.nbytes,
    }
    if as_json:
        found["types"] = {plane.name.lower(): dict(counts) for plane, counts in plan.types().items()}
    print(json.dumps(found) if as_json else f"{output}: {plan.nbytes / 1e9:.2f} GB")


def describe(plan: "Conversion") -> list[str]:
    """What will be written, one line for each purpose of tensors."""
    lines = [f"{plan.arch}: {len(plan.tensors)} tensors"]
    for plane, counts in plan.types().items():
        parts = ", ".join(f"{count} {name}" for name, count in counts.items())
        lines.append(f"  {plane.value}: {parts}")
    return lines
