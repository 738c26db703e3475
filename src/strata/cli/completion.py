"""`strata completion`: what teaches a shell to complete this program's words."""

import difflib
from typing import Annotated

import typer

from strata.errors import UsageError

PROGRAM = "strata"
VARIABLE = "_STRATA_COMPLETE"  # set by those scripts, when the shell asks for words
SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", autocompletion=lambda: list(SHELLS))],
) -> None:
    """Print a script that completes commands and options in a shell; nothing is installed."""
    if shell not in SHELLS:
        near = difflib.get_close_matches(shell, SHELLS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UsageError(f"no completion for {shell}; there is one for {', '.join(SHELLS)}{hint}")
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # imported there, not listed

    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def complete(app: typer.Typer) -> None:
    """Answer the shell, as VARIABLE asks, and exit."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # imported there, not listed

    completion_init()  # typer's own scripts, whose questions click alone would not know
    typer.main.get_command(app).main(prog_name=PROGRAM, complete_var=VARIABLE)
