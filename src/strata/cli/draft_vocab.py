"""`strata draft-vocab`: the tokens that a draft layer may propose."""

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.options import Model
from strata.errors import UsageError

draft_vocab_app = typer.Typer(help="Draft vocabularies: the tokens that a draft layer may propose.")

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write it.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME", help="Begin with this alone, not with the default; repeatable."),
]
Add = Annotated[
    list[str] | None,
    typer.Option("--add", metavar="NAME", help="A script or group of scripts, such as cyrillic; repeatable."),
]
CoverText = Annotated[
    Path | None,
    typer.Option(
        "--cover-text", metavar="FILE", help="UTF-8 text whose tokens are added, the frequent first."
    ),
]
Cover = Annotated[
    float, typer.Option("--cover", metavar="X", help="Share of the text's tokens that is to be covered.")
]


@draft_vocab_app.callback()
def _group() -> None:
    """Draft vocabularies: the tokens that a draft layer may propose."""


@draft_vocab_app.command()
def build(
    model: Model,
    out: Out,
    only: Only = None,
    add: Add = None,
    cover_text: CoverText = None,
    cover: Cover = 0.99,
) -> None:
    """Write a draft vocabulary of scripts and of a text, and say what it covers of each script.

    The default covers English, code, Chinese, Japanese and Korean.
    """
    from strata.gguf import open_model
    from strata.models import draft_vocab
    from strata.models.token_scripts import token_scripts

    if not 0 < cover <= 1:
        raise UsageError(f"--cover is {cover}; it must be above 0 and at most 1")
    file = open_model(model)
    scripts = token_scripts(file)
    if scripts is None:
        raise UsageError(f"{model}: no vocabulary of texts, so that scripts cannot be told apart")
    held = draft_vocab.ids_of(scripts, [*(only or draft_vocab.DEFAULT), *(add or [])])
    if cover_text is not None:
        from strata.cli import inputs
        from strata.text import Tokenizer

        text = inputs.decode(cover_text.read_bytes(), str(cover_text))
        tokens = Tokenizer.from_metadata(file.metadata).encode(text, add_special=False)
        before = len(held)
        held = draft_vocab.covering(tokens, held, cover)
        print(f"{len(held) - before} tokens added to cover {cover:.1%} of {cover_text}")
    draft_vocab.save(out, held, len(scripts))
    for found in draft_vocab.coverage(scripts, held):
        print(f"{found.script:10} {found.held:8,} of {found.total:8,}")
    print(f"{'all':10} {len(held):8,} of {len(scripts):8,}")
