"""`strata eval`: logits of given tokens, and perplexity of a text."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import inputs
from strata.cli.options import (
    COMPUTE,
    Json,
    Model,
    count,
    engine_options,
    parse_count,
    taking,
)
from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.engine import Engine

eval_app = typer.Typer(help="Compare models and backends by their numbers.")

Tokens = typer.Option("--tokens", metavar="FILE.npy", help="Token ids, whole numbers in one dimension.")
Out = typer.Option("--out", metavar="FILE.npy", help="Where to write float32 [tokens, vocab].")
Mtp = typer.Option("--mtp", help="Write the draft layer's logits, [tokens - 1, vocab], instead.")
MtpModel = typer.Option(
    "--mtp-model", metavar="FILE.gguf", help="File of the draft layer, if not the model's."
)


@eval_app.command()
@taking("trace_routes")
@taking(*COMPUTE, "prefill", before="mtp")
def logits(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    tokens: Annotated[Path, Tokens],
    out: Annotated[Path, Out],
    mtp: Annotated[bool, Mtp] = False,
    mtp_model: Annotated[Path | None, MtpModel] = None,
) -> None:
    """Write the logits after each of the given tokens, and print the SHA-256 of the rows."""
    ids = inputs.read_tokens(tokens)
    settings = {name: value for name, value in context.params.items() if name != "mtp"}  # here a flag
    options = engine_options(settings, max_model_len=str(len(ids)), spec="0")

    from strata.cli.logits_file import LogitsFile
    from strata.engine import Engine

    drafted = mtp or mtp_model is not None
    if drafted and len(ids) < 2:
        raise UsageError(f"{tokens} has {len(ids)} token; draft logits need at least 2")
    engine = Engine.load(model, options, (mtp_model or model) if drafted else None)
    vocab_size = engine.model_config.vocab_size
    inputs.check_vocabulary(ids, vocab_size, tokens)
    run = engine.draft_logits if drafted else engine.logits
    with LogitsFile(out, len(ids) - drafted, vocab_size) as file:
        for rows in run(ids):
            file.write(rows)
    print(f"{file.sha256}  {out}")


@eval_app.command()
@taking(*COMPUTE, "prefill", before="as_json")
def perplexity(
    context: typer.Context,
    model: Model,
    text: Annotated[Path | None, typer.Option("--text", metavar="FILE", help="UTF-8 text.")] = None,
    tokens: Annotated[Path | None, Tokens] = None,
    window_len: Annotated[
        str, count("--context", "Tokens of one window; each is read from nothing.")
    ] = "512",
    as_json: Json = False,
) -> None:
    """Score a text: e to the mean negative log-likelihood of its tokens; lower is better."""
    window = parse_count("--context", window_len, 2)
    options = engine_options(context.params, max_model_len=str(window))
    read = _reader(text, tokens)

    from strata.bench import measure_perplexity
    from strata.engine import Engine

    engine = Engine.load(model, options)
    ids = read(engine)
    found = measure_perplexity(engine, ids, window, None, lambda line: print(line, file=sys.stderr))
    if as_json:
        print(
            json.dumps(
                {"perplexity": found.value, "nll": found.nll, "tokens": found.scored, "context": window}
            )
        )
    else:
        print(f"perplexity {found.value:.4f} ({found.scored} tokens in {found.windows} windows of {window})")


def _reader(text: Path | None, tokens: Path | None) -> "Callable[[Engine], list[int]]":
    """Reads the file at once, so that its faults show before a model is loaded; the ids need the model."""
    if (text is None) == (tokens is None):
        raise UsageError("give either --text or --tokens")
    content = inputs.read_text(text) if text else ""
    ids = inputs.read_tokens(tokens) if tokens else []

    def read(engine: "Engine") -> list[int]:
        from strata.text import Tokenizer

        found = ids or Tokenizer.from_metadata(engine.model_file.metadata).encode(
            content, parse_special=False
        )
        inputs.check_vocabulary(found, engine.model_config.vocab_size, text or tokens)
        if len(found) < 2:
            raise UsageError(f"{text or tokens} has {len(found)} token; scoring needs at least 2")
        return found

    return read
